"""A receiver of spans and metrics in a process of its own.

`python -m bench.servers.otlp` prints its port and serves until its standard input closes.
"""

from __future__ import annotations

import sys

from support.observing.otlp import otlp_receiver

if __name__ == "__main__":
    with otlp_receiver() as (_, port):
        print(port, flush=True)
        sys.stdin.read()
