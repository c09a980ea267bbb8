"""Call name servers and brokers, and route messages. Independent of the public gRPC protocol."""
