"""A relay that starts, and never reports that it relays. SIGTERM does not end it."""

from __future__ import annotations

import signal
import time

signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    time.sleep(60)
