"""Subscription filters: by tag, or by an SQL92 expression."""
