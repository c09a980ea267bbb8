"""Observe a client: interceptors, traces, statistics."""
