"""Replication over gRPC: the stream between replicas, and what is told of a replica."""
