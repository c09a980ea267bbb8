"""Observe a client by interceptors, traces and statistics."""
