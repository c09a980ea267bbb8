"""Provide the clock, the fork rule, the loop thread, and the base of the plain classes."""
