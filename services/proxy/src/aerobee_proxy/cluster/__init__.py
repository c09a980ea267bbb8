"""Name servers and brokers as a proxy sees them. Knows no public protocol."""
