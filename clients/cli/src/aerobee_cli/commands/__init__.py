"""One module for each group of commands. What is slow to import is imported when a command runs."""
