"""Traces: the context of a producer, spans of this process, and their export by OTLP."""
