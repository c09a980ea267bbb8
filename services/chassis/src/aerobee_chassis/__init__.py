"""The shell of a gRPC service: options, logs, clock, server, health, metrics.

Knows nothing of messages.
"""
