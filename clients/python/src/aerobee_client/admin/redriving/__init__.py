"""Send dead letters again: choose them, read them, send them and record the outcomes."""
