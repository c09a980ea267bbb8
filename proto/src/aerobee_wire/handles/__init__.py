"""Texts that clients keep and return. Each names a lease, a delayed message or a half message."""
