"""What is derived from the commit log: consume queues, index, and the checkpoint over both."""
