"""The transport straight over gRPC's completion queue."""
