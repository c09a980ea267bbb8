"""Delivery of the messages of lite topics: subscriptions of clients, and leases on messages."""
