"""Let tests cause faults and advance time, enabled by `--test-control`."""
