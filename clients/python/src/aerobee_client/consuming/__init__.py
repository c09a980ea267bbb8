"""Consume as a member of a group: own queues, pull them, and settle their messages."""
