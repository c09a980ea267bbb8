"""Consume in order: one listener at a time per queue, by a lock of the queue at its broker."""
