"""Find and call name servers and brokers."""
