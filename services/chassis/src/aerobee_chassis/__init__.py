"""The shell of a gRPC service: options, logs, clock, server, health, metrics.

Knows nothing of messages.
"""

import os

# grpc reads these when it is first imported. By default its core prints errors to stderr (a port in
# use, for one), beside the one line that we print. GRPC_VERBOSITY=error turns that on again.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# By default gRPC reads its sockets on threads of its own, which wake ours for each event. Without
# them the thread that waits for an event reads and writes: a quarter less work a call.
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")
