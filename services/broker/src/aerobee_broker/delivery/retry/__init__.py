"""Retries and dead letters of messages that were not consumed."""
