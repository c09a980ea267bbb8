"""The repair of a damaged log, in any role."""
