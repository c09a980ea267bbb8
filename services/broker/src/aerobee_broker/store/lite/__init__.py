"""The order of each lite topic, derived from the consume queues of its parent."""
