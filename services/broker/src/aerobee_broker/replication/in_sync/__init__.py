"""Keep the in-sync set of a group, and count its events."""
