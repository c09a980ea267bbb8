"""The proxy: speaks the public protocol apache.rocketmq.v2 to the official SDKs, ours to brokers.

Keeps nothing that a restart may lose.
"""

import aerobee_chassis.lean  # noqa: F401  # before anything imports structlog or grpc
