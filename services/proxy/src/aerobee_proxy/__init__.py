"""The proxy speaks apache.rocketmq.v2 to the official SDKs, and Aerobee's protocol to brokers.

A restart of the proxy loses no messages and no offsets, because brokers store all lasting state.
"""

import aerobee_chassis.structlog_without_rich  # noqa: F401  # before anything imports structlog
