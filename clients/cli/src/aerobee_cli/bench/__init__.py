"""Put load on a cluster, and try each of its queues, for `aerobee bench`."""
