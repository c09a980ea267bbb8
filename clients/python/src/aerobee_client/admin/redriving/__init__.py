"""Send dead letters again: what is sent, where it is read from, and what is recorded."""
