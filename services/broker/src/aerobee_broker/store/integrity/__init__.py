"""Integrity: checks that the log still contains what was written, and repairs it."""
