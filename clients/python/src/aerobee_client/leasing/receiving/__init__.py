"""Receive messages on lease from all brokers of the subscribed topics."""
