"""The `aerobee` command. Stands on the client; starts servers as processes and imports none."""
