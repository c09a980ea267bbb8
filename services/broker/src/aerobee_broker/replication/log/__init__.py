"""Copy a master's log: what replicas have, and the two ends of the stream."""
