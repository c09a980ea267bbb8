"""The services as child processes."""
