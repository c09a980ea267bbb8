"""Receive messages on lease from any source, which is a topic at a broker, that has messages."""
