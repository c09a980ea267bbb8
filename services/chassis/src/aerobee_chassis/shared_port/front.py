"""The server's side of a port that takes TLS and plaintext alike: listens, keeps a relay running,
stops it. The relay is a process of its own (`relay`), so that neither TLS nor passing bytes on
takes time from the server's event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from typing import Any

import structlog

from aerobee_chassis.errors import CertificateError, PortInUse, StartError
from aerobee_chassis.server import join_address
from aerobee_chassis.shared_port.settings import Counts, RelaySettings, TlsSettings

BACKLOG = 4096
START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 5.0
RESTART_S = 1.0
MAX_SOCKET_PATH = 107
LONGEST_NAME = len("/[0000:0000:0000:0000:0000:0000:0000:0000]:65535")


class SharedPort:
    """`host` and `port` are what clients dial; the server shall listen at `backend`.

        shared = SharedPort("127.0.0.1", 8081, TlsSettings())
        shared.open()                       # `backend` is known
        ... serve there ...
        port = await shared.start()
        ... shared.drain(), stop serving ...
        await shared.stop()
    """

    def __init__(self, host: str, port: int, tls: TlsSettings) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._directory = ""
        self._listeners: list[socket.socket] = []
        self._relay: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._stopping = False
        self.counts = Counts()
        self.reload_failures = 0

    @property
    def backend(self) -> str:
        """Where the server listens, as gRPC writes it."""
        return f"unix:{self._directory}/grpc"
