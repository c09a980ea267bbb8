"""Provide the certificate that a port presents to SDKs: from files, or a self-signed one.

Files are reloaded when they change.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import structlog

from aerobee_chassis.background import BackgroundTask
from aerobee_chassis.errors import CertificateError
from aerobee_chassis.lifecycle import Component
from aerobee_chassis.tls_port import tls
from aerobee_chassis.tls_port.settings import TlsSettings

MAKER = "aerobee_chassis.tls_port.self_signed"
MAKING_S = 30.0  # for a self-signed certificate, which takes less than a second

Stamp = tuple[tuple[int, int, int], ...]
InThread = Callable[[Callable[[], ssl.SSLContext]], Awaitable[ssl.SSLContext]]


class PortCertificate(Component):
    """The certificate of the ports of a process (`rpc.transport.PortTls`).

    Args:
        settings: The settings.
        in_thread: Runs a function in a thread: files and an encrypted key take a tenth of a second.

    Attributes:
        accepts_plaintext: Whether a port also serves clients without TLS.
        max_age_ms: None: clients have no certificates that could expire.
        failed_reloads: How often changed files could not be used.
    """

    def __init__(self, settings: TlsSettings, in_thread: InThread = asyncio.to_thread) -> None:
        self.accepts_plaintext = settings.mode == "permissive"
        self.max_age_ms: int | None = None
        self.failed_reloads = 0
        self._settings = settings
        self._in_thread = in_thread
        self._context: ssl.SSLContext | None = None
        self._making: asyncio.Task[ssl.SSLContext | None] | None = None
        self._loaded: Stamp = ()
        self._seen: Stamp = ()
        self._watch = BackgroundTask("certificate files", self._watch_files)

    async def start(self) -> None:
        """Load the files, if the settings name them. Raises CertificateError."""
        await self.load()
        if self._settings.cert_path:
            await self._watch.start()

    async def stop(self) -> None:
        await self._watch.stop()
        if self._making is not None:
            self._making.cancel()
            await asyncio.wait([self._making])

    async def load(self) -> None:
        if self._settings.cert_path and self._context is None:
            self._loaded = self._seen = self._stamp()
            self._context = await self._in_thread(self._read)

    async def context(self) -> ssl.SSLContext:
        """Return the context for the next handshake. Raises CertificateError.

        The first call waits until the self-signed certificate is created. If that fails, the next
        call retries it.
        """
        if self._context is None:
            if self._making is None:
                self._making = asyncio.create_task(self._make(), name="self-signed certificate")
            self._context = await asyncio.shield(self._making)
        if self._context is None:
            raise CertificateError("no self-signed certificate could be created: see the log")
        return self._context

    # ---- files ----

    def _read(self) -> ssl.SSLContext:
        given = self._settings
        password = given.key_password
        if given.key_password_file:
            password = tls.read_password(given.key_password_file)
        return tls.load(given.cert_path, given.key_path, password)

    def _stamp(self) -> Stamp:
        stamps = []
        for path in (self._settings.cert_path, self._settings.key_path):
            try:
                status = Path(path).stat()
            except OSError:
                stamps.append((0, 0, 0))
            else:
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(stamps)

    async def _watch_files(self) -> None:
        while True:
            await asyncio.sleep(self._settings.watch_interval_ms / 1_000)
            await self.look()

    async def look(self) -> None:
        """Reload the files if they have changed, and have not changed since the last look.

        The two files are not replaced atomically.
        """
        now, before = self._stamp(), self._seen
        self._seen = now
        if now != before or now == self._loaded:
            return
        self._loaded = now
        log = structlog.get_logger()
        try:
            self._context = await self._in_thread(self._read)
        except CertificateError as error:
            self.failed_reloads += 1
            log.error(
                "certificate_not_reloaded",
                error=str(error),
                about=error.about,
                instead="the one before stays",
            )
        else:
            log.info("certificate_reloaded", certificate=self._settings.cert_path)

    # ---- self-signed ----

    async def _make(self) -> ssl.SSLContext | None:
        """Create a self-signed certificate, or log why there is none."""
        log = structlog.get_logger()
        try:
            made = await self._in_thread(_self_signed)
        except (CertificateError, OSError) as error:
            log.error("no_self_signed_certificate", error=str(error))
            return None
        finally:
            self._making = None
        log.info("self_signed_certificate")
        return made


def _self_signed() -> ssl.SSLContext:
    """Create a certificate in another process. Raises CertificateError, OSError."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    try:
        done = subprocess.run(
            [sys.executable, "-m", MAKER, *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=MAKING_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CertificateError(f"{MAKER} took more than {MAKING_S:g} s") from None
    except OSError as error:  # no file descriptors or no processes are left
        raise CertificateError(f"{MAKER} cannot be started: {error.strerror}") from None
    if done.returncode:
        raise CertificateError(f"{MAKER} ended with exit code {done.returncode}")
    return tls.load_pem(done.stdout)
