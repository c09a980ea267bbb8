"""Report to clients which broker serves which topic. A name server carries no messages."""

import aerobee_chassis.structlog_without_rich  # noqa: F401  # before anything imports structlog
