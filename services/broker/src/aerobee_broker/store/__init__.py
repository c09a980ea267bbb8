"""The store keeps the messages on a disk. One event loop owns it, and its calls are synchronous.

The store does not depend on RPCs or on delivery.
"""
