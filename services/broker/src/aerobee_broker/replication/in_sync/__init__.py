"""The in-sync set of a group, and counts of it."""
