"""Message delivery: decides which consumer gets each message, when, and how often.

This package does not access files or the network.
"""
