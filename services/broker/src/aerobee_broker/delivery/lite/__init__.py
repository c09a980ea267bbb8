"""Manage lite topics: client subscriptions, and leases on their messages."""
