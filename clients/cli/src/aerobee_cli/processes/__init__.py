"""Run the services as child processes."""
