"""A service process keeps the memory of a request for the next one."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PIECE_BYTES = 1 << 20
TOGETHER = 8
ROUNDS = 25
# Takes memory and frees it, as requests do, and prints how often the kernel had to give some.
SERVICE = f"""
import os, resource, signal, sys
from aerobee_chassis import process
from aerobee_chassis.lifecycle import App

class Taking(App):
    async def _start_components(self):
        self.take()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range({ROUNDS}):
            self.take()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        return {{}}

    def take(self):
        [bytearray({PIECE_BYTES}) for _ in range({TOGETHER})]

def stop(_fields):
    os.kill(os.getpid(), signal.SIGTERM)

sys.exit(process.run(Taking, on_ready=stop))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to")
def test_memory_of_a_request_is_kept_for_the_next_one() -> None:
    reported = subprocess.run(
        [sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    faults = int(reported.stdout.splitlines()[0])
    pages = ROUNDS * TOGETHER * PIECE_BYTES // 4096
    assert faults < pages / 10
