"""Store messages on a commit log and deliver them to consumers. A broker knows no routes."""

import aerobee_chassis.structlog_without_rich  # noqa: F401  # before anything imports structlog
