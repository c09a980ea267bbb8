"""`aerobee dlq redrive`: what it connects, and what it shows."""
