"""Sending: message queues and their choice. Knows no public protocol."""
