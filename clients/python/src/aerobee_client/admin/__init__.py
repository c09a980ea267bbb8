"""Administer topics, groups, offsets, brokers and dead letters."""
