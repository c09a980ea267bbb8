"""Read the environment variables of the driver that configure reads and writes.

Workers on other machines have other variables. So the driver passes the values to them with the
options of the read or write. Functions of this module do not print secrets.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

# This variable holds the name servers to use if the option nameServer is missing.
NAMESRV_ADDR = "NAMESRV_ADDR"
# This variable holds the secret key of redaction. Only its first 64 bytes are used.
REDACT_KEY = "AEROBEE_REDACT_KEY"
MAX_KEY_BYTES = 64


def name_server(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name servers from the environment, or "" if the variable is missing."""
    return environ.get(NAMESRV_ADDR, "").strip()


def redact_key(environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the first 64 bytes of the redaction key, or b"" if the variable is missing."""
    return environ.get(REDACT_KEY, "").encode()[:MAX_KEY_BYTES]
