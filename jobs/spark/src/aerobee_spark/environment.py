"""What reads and writes take from environment variables: those of the driver, and here alone.

Workers on other machines have other variables, so what they need of these travels with the options
of the read or write. Nothing here shows a value that is secret.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

# Name servers, where the option nameServer is not given.
NAMESRV_ADDR = "NAMESRV_ADDR"
# The secret of redaction: 64 bytes of it count.
REDACT_KEY = "AEROBEE_REDACT_KEY"
MAX_KEY_BYTES = 64


def name_server(environ: Mapping[str, str] = os.environ) -> str:
    """Empty when there is none."""
    return environ.get(NAMESRV_ADDR, "").strip()


def redact_key(environ: Mapping[str, str] = os.environ) -> bytes:
    """Empty when there is none."""
    return environ.get(REDACT_KEY, "").encode()[:MAX_KEY_BYTES]
