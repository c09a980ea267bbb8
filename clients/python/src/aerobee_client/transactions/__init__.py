"""Implement transactions of a producer: half messages, commits, rollbacks and checks."""
