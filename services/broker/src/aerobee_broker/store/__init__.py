"""The store: the messages on a disk. Synchronous, owned by one event loop.

The store does not depend on RPCs or on delivery.
"""
