"""Encode and decode the texts that clients keep and return.

Each text names a lease, a delayed message or a half message.
"""
