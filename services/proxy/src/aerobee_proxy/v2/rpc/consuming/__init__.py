"""RPCs of consumers."""
