"""The broker: stores messages on a commit log and gives them to consumers. Knows no route."""

import aerobee_chassis.structlog_without_rich  # noqa: F401  # before anything imports structlog or grpc
