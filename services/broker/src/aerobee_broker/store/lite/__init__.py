"""The messages of each lite topic in order, derived from the consume queues of its parent."""
