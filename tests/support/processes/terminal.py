"""A process on a terminal of a given width: what a user sees, and its signals."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from support.clock.polling import until_sync

END_TIMEOUT_S = 60.0
_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class Terminal:
    """Runs a command whose stdin, stdout and stderr are one terminal; killed on leaving `with`."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        columns: int = 80,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**environment, "TERM": "xterm", **(env or {})},
        )  # fmt: skip
        os.close(theirs)
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def text(self) -> str:
        """What it has shown so far, without colors."""
        return _COLORS.sub("", bytes(self._shown).decode().replace("\r\n", "\n"))

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def until_shown(self, pattern: str) -> None:
        until_sync(lambda: re.search(pattern, self.text), f"shows {pattern!r}: {self.text}")

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Its exit code once it has ended and shown everything."""
        code = self.process.wait(END_TIMEOUT_S)
        self._reader.join(END_TIMEOUT_S)
        return code

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._ours, 65_536)
            except OSError:  # the other end is closed
                return
            if not part:
                return
            self._shown += part

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(END_TIMEOUT_S)
        os.close(self._ours)
