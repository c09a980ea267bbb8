"""Tracking: what became of a message in each consumer group. It changes nothing."""
