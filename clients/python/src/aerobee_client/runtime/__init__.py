"""Provide what every client runs on: clock, pauses after failures, and loop thread."""
