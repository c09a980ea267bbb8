"""Deletion: expired log files, and the records of deleted topics."""
