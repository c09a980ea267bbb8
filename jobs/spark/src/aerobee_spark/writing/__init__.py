"""Encode Arrow columns as messages and send them to brokers."""
