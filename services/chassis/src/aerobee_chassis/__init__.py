"""The shell of a gRPC service: options, logs, clock, server, health, metrics.

Knows nothing of messages.
"""

import os

# Read when grpc is first imported. What grpc's core prints to stderr (a port in use, for one) comes
# beside the one line that a user gets from us. GRPC_VERBOSITY=error shows it again.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# gRPC's own threads for its sockets would wake ours for each event. Without them the thread that
# waits for an event reads and writes itself, as was grpcio's default for years: a quarter less work
# a call.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")
