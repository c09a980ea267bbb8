"""Provide gRPC servers and channels over HTTP/2."""
