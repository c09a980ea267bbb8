"""Text that clients hold and give back: it names a lease, a delayed message or a half message."""
