"""A member of a consumer group: which queues it owns, and what becomes of their messages."""
