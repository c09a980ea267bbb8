"""Faults and time for tests: what `--test-control` turns on."""
