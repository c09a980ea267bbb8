"""Transactions of a producer: half messages, their ends, and what brokers ask about them."""
