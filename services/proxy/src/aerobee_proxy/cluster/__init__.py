"""Name servers and brokers, and what a proxy decides about messages. Knows no public protocol."""
