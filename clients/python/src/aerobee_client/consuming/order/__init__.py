"""Consume in order: lock each queue at its broker, and call one listener per queue at a time."""
