"""OTLP: its encoding, and calls to a receiver, for metrics and traces."""
