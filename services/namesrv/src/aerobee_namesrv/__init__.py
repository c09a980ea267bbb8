"""The name server: which broker serves which topic. It tells clients, and carries no message."""

import aerobee_chassis.structlog_without_rich  # noqa: F401  # before anything imports structlog or grpc
