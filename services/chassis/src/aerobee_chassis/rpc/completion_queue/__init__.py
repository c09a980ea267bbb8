"""Implement the transport that uses gRPC's completion queue directly."""
