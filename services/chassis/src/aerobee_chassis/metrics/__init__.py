"""Metrics of a service: their declarations and values, and how they reach a monitoring system."""
