"""Lite topics: who gets which, and their messages on lease."""
