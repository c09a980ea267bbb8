"""The proxy: speaks the public protocol apache.rocketmq.v2 to the official SDKs, ours to brokers.

Keeps nothing that a restart may lose.
"""

import aerobee_chassis.structlog_without_rich  # noqa: F401  # before anything imports structlog or grpc
