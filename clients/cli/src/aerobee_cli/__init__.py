"""Provide the command `aerobee`. It uses the client, and starts servers as separate processes."""

import os

# grpc reads this variable at its first import. Without it, the log of grpc's core would mix with
# the lines of this command on stderr. GRPC_VERBOSITY=info shows that log again.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
