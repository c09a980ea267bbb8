"""Call gRPC servers over HTTP/2 from the event loop of a client.

A `Channel` calls one address. It connects, and connects again when needed. A `Connection` speaks
HTTP/2 (RFC 9113) on one socket. It carries `UnaryCall`s and `StreamingCall`s. `hpack` reads and
writes header blocks (RFC 7541).

This package has only what the clients of name servers and brokers need. It accepts no pushes and no
compression, sends no streams of requests, and uses no proxies. `grpc.aio` would take three times
its processor time for a call, because it has a thread of its own that wakes the event loop.
"""
