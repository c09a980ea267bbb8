"""Deletes expired log files, and keeps the list of deleted topics."""
