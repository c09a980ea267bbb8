"""Serve calls with grpc.aio."""
