"""The gRPC servers and channels, over either of two transports."""
