"""Load the certificate of a relay from files, or create a self-signed one.

Files are reloaded when they change. This module imports `ssl` only when there is a certificate to
load.
"""

from __future__ import annotations

import os
import socket
import sys

from aerobee_chassis.errors import CertificateError
from aerobee_chassis.tls_port.poller import IN, Poller

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from aerobee_chassis.tls_port.settings import TlsSettings

    Stamp = tuple[tuple[int, int, int], ...]

MAKER = "aerobee_chassis.tls_port.self_signed"


class Certificates:
    """Provide the certificate of a relay.

    `directory` is a private folder for the self-signed key, because `ssl` can only read files.
    """

    def __init__(
        self, settings: TlsSettings, directory: str, poller: Poller, report: Callable[..., None]
    ) -> None:
        self._settings = settings
        self._directory = directory
        self._poller = poller
        self._report = report
        self._context: ssl.SSLContext | None = None
        self._waiting: list[Callable[[ssl.SSLContext], None]] = []
        self._loaded: Stamp = ()
        self._seen: Stamp = ()

    def start(self) -> None:
        """Load the certificate files, if the settings name them. Raises CertificateError."""
        if self._settings.cert_path:
            self._loaded = self._seen = self._stamp()
            self._context = self._load()
            self._poller.call_later(self._settings.watch_interval_ms / 1000, self._check_files)

    def when_ready(self, callback: Callable[[ssl.SSLContext], None]) -> None:
        """Call `callback` with the certificate at once, or after the self-signed one is created."""
        if self._context is not None:
            callback(self._context)
            return
        self._waiting.append(callback)
        if len(self._waiting) == 1:
            self._make()

    # ---- files ----

    def _load(self) -> ssl.SSLContext:
        from aerobee_chassis.tls_port import tls

        given = self._settings
        password = given.key_password
        if given.key_password_file:
            password = tls.read_password(given.key_password_file)
        return tls.load(given.cert_path, given.key_path, password)

    def _stamp(self) -> Stamp:
        stamps = []
        for path in (self._settings.cert_path, self._settings.key_path):
            try:
                status = os.stat(path)
            except OSError:
                stamps.append((0, 0, 0))
            else:
                stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(stamps)

    def _check_files(self) -> None:
        now, before = self._stamp(), self._seen
        self._seen = now
        # The two files are not replaced atomically, so load them after they have stopped changing.
        if now == before and now != self._loaded:
            self._loaded = now
            try:
                self._context = self._load()
            except CertificateError as error:
                self._report("reload_failed", error=str(error), about=error.about)
            else:
                self._report("reloaded", certificate=self._settings.cert_path)
        self._poller.call_later(self._settings.watch_interval_ms / 1000, self._check_files)

    # ---- self-signed ----

    def _make(self) -> None:
        try:
            reading, child = _spawn()
        except OSError as error:  # no file descriptors or no processes are left
            self._not_made(f"{MAKER} cannot be started: {error.strerror}")
            return
        parts: list[bytes] = []

        def read(_: int) -> None:
            part = os.read(reading, 65_536)
            if part:
                parts.append(part)
                return
            self._poller.forget(reading)
            os.close(reading)
            self._made(b"".join(parts), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        self._poller.wait_for(reading, IN, read)

    def _made(self, pem: bytes, exit_code: int) -> None:
        from aerobee_chassis.tls_port import tls

        try:
            if exit_code:
                raise CertificateError(f"{MAKER} ended with exit code {exit_code}")
            self._context = tls.load_pem(pem, self._directory)
        except (CertificateError, OSError) as error:
            self._not_made(str(error))
            return
        waiting, self._waiting = self._waiting, []
        self._report("self_signed_certificate")
        for callback in waiting:
            callback(self._context)

    def _not_made(self, why: str) -> None:
        """Report a failure. Waiting connections time out; the next one causes another attempt."""
        self._waiting.clear()
        self._report("no_self_signed_certificate", error=why)


def _spawn() -> tuple[int, int]:
    """Start to make a certificate. Return the descriptor of its output, and its process id."""
    names = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    reading, writing = os.pipe()
    try:
        # Importing `subprocess` would take 2 MB.
        child = os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", MAKER, *names],
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, writing, 1)],
        )
    except OSError:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return reading, child
