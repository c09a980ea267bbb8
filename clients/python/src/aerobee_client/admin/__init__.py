"""Looking after topics, groups, offsets, brokers and dead letters."""
