"""Provide the common base of a gRPC service: options, logs, clock, server, health, metrics.

This package does not depend on messages.
"""
