"""The shell of a gRPC service: options, logs, clock, server, health, metrics.

Knows nothing of messages.
"""

import os
import sys

# Read when grpc is first imported. What grpc's core prints to stderr (a port in use, for one) comes
# beside the one line that a user gets from us. GRPC_VERBOSITY=error shows it again.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# structlog imports rich where it is installed, for consoles. No service writes to one: it would be
# 5 MB of each process and 40 ms of its start. Each service's package imports this one first.
if not {"structlog", "rich"} & sys.modules.keys():
    sys.modules["rich"] = None  # type: ignore[assignment]  # importing it fails now
    import structlog  # noqa: F401

    del sys.modules["rich"]
