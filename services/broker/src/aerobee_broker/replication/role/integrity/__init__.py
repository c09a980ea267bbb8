"""Repair a damaged log, in any role."""
