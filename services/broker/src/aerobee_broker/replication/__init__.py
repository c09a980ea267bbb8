"""Replicate a broker's log to other brokers, and decide which of them may become master."""
