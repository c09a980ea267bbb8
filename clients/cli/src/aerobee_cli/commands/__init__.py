"""One module for each group of commands. Slow modules are imported when a command runs."""
