"""Name servers and brokers as a client sees them."""
