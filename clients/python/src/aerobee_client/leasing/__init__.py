"""Receive messages on lease from every broker of a topic, settle them, and renew leases."""
