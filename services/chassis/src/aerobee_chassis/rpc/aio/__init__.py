"""Implement the transport that uses grpc.aio."""
