"""Communicate with name servers, where this broker registers, and with other brokers."""
