"""Programs that fork, and servers that do: what their children may do with clients."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from support.clock.polling import until_sync

REFUSED = "ILLEGAL_OPERATION"
# How each program begins: `tried(use)` is the name of the outcome, and the seconds that it took.
HEAD = """
import asyncio, json, multiprocessing, os, sys, time
from aerobee_client import *

def tried(use):
    began = time.monotonic()
    try:
        use()
        name = "done"
    except MqError as error:
        name = error.code.name
    return name, time.monotonic() - began
"""


def assert_refused_at_once(outcomes: list[list[Any]]) -> None:
    assert outcomes
    assert {name for name, _ in outcomes} == {REFUSED}
    assert max(took_s for _, took_s in outcomes) < 1


@contextlib.contextmanager
def running(
    command: Sequence[str], folder: Path, namesrv: str, serves: str, *, kill: bool = False
) -> Iterator[re.Match[str]]:
    """A server, once its log matches `serves`. It is asked to stop at the end; `kill`: killed with
    its workers."""
    log = folder / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "NAMESRV_ADDR": namesrv},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
        try:

            def found() -> re.Match[str] | None:
                text = log.read_text(errors="replace")
                assert process.poll() is None, text
                return re.search(serves, text)

            match = until_sync(found, f"{command[:4]} serves", timeout_s=60)
            assert match is not None
            yield match
        finally:
            if kill:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.terminate()
            process.wait(60)
