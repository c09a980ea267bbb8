"""Delayed messages: delay levels and delivery times."""
