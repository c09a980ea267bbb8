"""Checks that the log still contains the bytes that were written, and repairs it."""
