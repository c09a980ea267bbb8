"""The name server: reports to clients which broker serves which topic. It carries no messages."""

import aerobee_chassis.structlog_without_rich  # noqa: F401  # before anything imports structlog or grpc
