"""Faults and time for tests, enabled by `--test-control`."""
