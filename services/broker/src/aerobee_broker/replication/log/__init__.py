"""Copy the log of a master to its slaves."""
