"""Lease, renew and settle messages for clients. Independent of the public gRPC protocol."""
