"""The `aerobee` command. Stands on the client; starts servers as processes and imports none."""

import os

# Read when grpc is first imported: what grpc's core logs would come between our lines on stderr.
# GRPC_VERBOSITY=info shows it again.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
