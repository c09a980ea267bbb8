"""Implement the transport on sockets of the event loop, without gRPC's library."""
