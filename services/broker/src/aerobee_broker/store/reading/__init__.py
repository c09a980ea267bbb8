"""Reads records of the log, and checks each one."""
