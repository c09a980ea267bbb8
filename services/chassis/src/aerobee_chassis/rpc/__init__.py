"""Provide gRPC servers and channels on two alternative transports."""
