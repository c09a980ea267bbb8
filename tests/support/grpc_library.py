"""Set up gRPC's library for tests and the processes that they start.

The library reads these variables when it is imported, so this module must be imported before it.
Then its core prints no errors to stderr, and has no threads for its sockets, which forks of the
process of a test would miss.
"""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("GRPC_EXPERIMENTS", "-event_engine_listener,-event_engine_client")
