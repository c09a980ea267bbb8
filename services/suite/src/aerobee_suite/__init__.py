"""Run a name server, a broker and a proxy in one process, on one event loop."""

import aerobee_chassis.structlog_without_rich  # noqa: F401  # before anything imports structlog
