"""Run a replicated broker as master or slave, in one process."""
