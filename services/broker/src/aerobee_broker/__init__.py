"""The broker: stores messages on a commit log and gives them to consumers. Knows no route."""

import aerobee_chassis.lean  # noqa: F401  # before anything imports structlog or grpc
