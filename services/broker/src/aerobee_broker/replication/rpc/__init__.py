"""Replication over gRPC: the stream between replicas, and the status of a replica."""
