"""Read the environment variables of the driver. No other module of the package reads any.

Workers on other machines have other variables, so the values that they need travel with the options
of the read or write. No function here prints a secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

# Name servers, used if the option nameServer is missing.
NAMESRV_ADDR = "NAMESRV_ADDR"
# The secret key of redaction; its first 64 bytes are used.
REDACT_KEY = "AEROBEE_REDACT_KEY"
MAX_KEY_BYTES = 64


def name_server(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name servers; empty if the variable is missing."""
    return environ.get(NAMESRV_ADDR, "").strip()


def redact_key(environ: Mapping[str, str] = os.environ) -> bytes:
    """Return the first 64 bytes of the redaction key; empty if the variable is missing."""
    return environ.get(REDACT_KEY, "").encode()[:MAX_KEY_BYTES]
