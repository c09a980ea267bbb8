"""Flushes appends to the disk, and ends the waits for appends that are durable."""
