"""Provide the base of every client: the clock, the loop thread, and the fork rule."""
