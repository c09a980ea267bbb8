"""Lite topics: what a client subscribes to, and how it receives."""
