"""The messages of each lite topic in order, derived from the queues of its parent topic."""
