"""The `aerobee` command. It uses the client; it starts servers as processes and imports none."""

import os

# grpc reads this at its first import. Otherwise the log of grpc's core would mix with our lines on
# stderr. GRPC_VERBOSITY=info shows that log again.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
