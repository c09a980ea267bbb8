"""Looks into the store of a stopped broker: `check` verifies it, `dump` shows it.

Changes nothing.
"""
