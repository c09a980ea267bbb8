"""Sending: message queues and their choice. Independent of the public protocol."""
