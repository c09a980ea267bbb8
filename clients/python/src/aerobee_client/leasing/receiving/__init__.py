"""Receive messages on lease from any source that has some."""
