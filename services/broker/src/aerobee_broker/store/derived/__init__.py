"""The files derived from the commit log: consume queues, index, and the checkpoint over both."""
