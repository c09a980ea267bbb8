"""Replication: copies of a broker's log on other brokers, and which of them may become master."""
