"""Run a module as a program that ends when the process that started it ends.

    python -m aerobee_cli.processes.tether MODULE [ARGUMENT …]

The starter is the process that started this program and holds the other end of its stdin. The
starter writes one line, a JSON array of further arguments. Until then the module is only imported,
so that several programs load at the same time even if one needs the address of another. stdin ends
when the starter ends, for any reason. Then this program and its children (its process group) get
SIGTERM, and later SIGKILL.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys
import threading
import time

STDIN = 0
# This is longer than the stop of a service takes.
GRACE_S = 20.0


def main() -> None:
    module, *arguments = sys.argv[1:]
    program = f"{module}.__main__"
    importlib.import_module(program)
    # The module is executed again below as __main__. The modules that it imported stay loaded.
    del sys.modules[program]
    line = _read_line()
    if not line:
        return
    threading.Thread(target=_end_with_starter, name="tether", daemon=True).start()
    sys.argv = [module, *arguments, *json.loads(line)]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _read_line() -> bytes:
    # Read single bytes, because the bytes after the line belong to `_end_with_starter`.
    line = b""
    while byte := os.read(STDIN, 1):
        if byte == b"\n":
            return line
        line += byte
    return b""


def _end_with_starter() -> None:
    while os.read(STDIN, 1024):
        pass
    _signal_all(signal.SIGTERM)
    time.sleep(GRACE_S)
    _signal_all(signal.SIGKILL)


def _signal_all(number: signal.Signals) -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(0, number)
    else:  # started from a shell, whose process group it shares
        os.kill(os.getpid(), number)


if __name__ == "__main__":
    main()
