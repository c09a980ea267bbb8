"""Receiving messages on lease from whichever source has some."""
