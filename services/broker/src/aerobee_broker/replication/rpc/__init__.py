"""Implement replication over gRPC: the stream between replicas, and calls between them."""
