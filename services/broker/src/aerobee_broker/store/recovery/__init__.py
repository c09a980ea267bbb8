"""Recovery: reads the log at a start, and brings consume queues and index to its end."""
