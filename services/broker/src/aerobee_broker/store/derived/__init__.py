"""The files derived from the commit log: consume queues and index, and their checkpoint."""
