"""Decide when an append is durable, and end the waits for it."""
