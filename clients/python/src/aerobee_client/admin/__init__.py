"""Administering topics, groups, offsets and brokers; dead letters."""
