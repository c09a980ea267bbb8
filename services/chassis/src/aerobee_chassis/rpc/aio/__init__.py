"""The transport of grpc.aio."""
