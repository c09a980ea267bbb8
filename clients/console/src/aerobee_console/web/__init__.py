"""HTTP: pages, actions and the JSON API over the answers of `aerobee_console.reading`."""
