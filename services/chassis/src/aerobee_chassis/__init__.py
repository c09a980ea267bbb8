"""Provide the common base of a gRPC service: options, logs, clock, server, health, metrics.

This package does not depend on messages.
"""

import os

# Services do not use gRPC's library. These are for programs that use it beside this package, such
# as tests. grpc reads them before its first call. By default, its core prints errors to stderr.
# GRPC_VERBOSITY=error restores that.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# By default, gRPC reads its sockets on its own threads, which wake our thread for each event. With
# these settings, the waiting thread reads and writes itself. That saves a quarter of the work.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")
