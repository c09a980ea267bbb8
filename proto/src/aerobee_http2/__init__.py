"""Call and serve gRPC over HTTP/2 on an event loop.

A `Channel` calls one address. It connects, and connects again when needed. A `Connection` speaks
HTTP/2 (RFC 9113) on one socket. It carries calls: `UnaryCall`, `StreamingCall` and `Exchange`.
A `ServerConnection` serves `ServerStream`s on one socket. `framing` splits bytes into frames for
both. `hpack` reads and writes header blocks (RFC 7541).

This package has only what clients and services need. Clients accept no pushes and no compression,
and use no proxies. `grpc.aio` would take three times its processor time for a call, because it has
a thread of its own that wakes the event loop.
"""
