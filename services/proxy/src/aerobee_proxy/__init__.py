"""The proxy: speaks apache.rocketmq.v2 to the official SDKs, and Aerobee's protocol to brokers.

It does not keep anything that a restart must not lose.
"""

import aerobee_chassis.structlog_without_rich  # noqa: F401  # before anything imports structlog or grpc
