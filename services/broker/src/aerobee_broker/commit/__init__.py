"""From an append to its flush: when it is durable, and what waits for it."""
