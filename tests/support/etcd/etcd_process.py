"""etcd, for tests that ask the real one: members on loopback, each a process of its own.

Starting blocks: inside a coroutine that shares its loop with others, use `asyncio.to_thread`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from support.clock.polling import until_sync
from support.processes import certificates

STOP_GRACE_S = 10.0


def require_etcd() -> None:
    """Skips the test where there is no `etcd`; fails it when AEROBEE_REQUIRE_ETCD is set."""
    if shutil.which("etcd") is not None:
        return
    if os.environ.get("AEROBEE_REQUIRE_ETCD"):
        pytest.fail("AEROBEE_REQUIRE_ETCD is set, but there is no `etcd` on PATH")
    pytest.skip("needs the command etcd (on Debian: apt-get install etcd-server)")


class EtcdTls:
    """Certificates in `folder`: etcd shows `server`, and asks its clients for `client`."""

    def __init__(self, folder: Path) -> None:
        self.server = certificates.write(folder, "etcd")
        self.client = certificates.write(folder, "broker")
        self.known = folder / "known.crt"  # etcd's gateway shows itself its own one
        self.known.write_bytes(self.client[0].read_bytes() + self.server[0].read_bytes())

    @property
    def options(self) -> list[str]:
        certificate, key = map(str, self.server)
        known = str(self.known)
        return [
            *("--cert-file", certificate, "--key-file", key),
            *("--client-cert-auth", "--trusted-ca-file", known),
        ]

    def context(self) -> ssl.SSLContext:
        """Of a client that is let in."""
        context = ssl.create_default_context(cafile=str(self.server[0]))
        context.load_cert_chain(*self.client)
        return context

    def settings(self) -> list[str]:
        """Of a broker."""
        certificate, key = self.client
        paths = {"etcdCaPath": self.server[0], "etcdCertPath": certificate, "etcdKeyPath": key}
        return [f"{name}={path}" for name, path in paths.items()]


class EtcdMember:
    """One member of a cluster. `endpoint`: "host:port" for clients."""

    def __init__(
        self,
        data: Path,
        name: str,
        ports: tuple[int, int],
        cluster: str,
        tls: EtcdTls | None = None,
        *,
        host: str = "127.0.0.1",
        prefix: Sequence[str] = (),
    ) -> None:
        """`ports`: for clients and for the other members. `cluster`: as in --initial-cluster.
        `tls`: for clients. `prefix`: the command starts with it; it is to become etcd, by exec."""
        client = f"http{'s' if tls else ''}://{host}:{ports[0]}"
        peer = f"http://{host}:{ports[1]}"
        self._tls = tls
        self.endpoint = f"{host}:{ports[0]}"
        self._health = f"{client}/health"
        self._log = data / f"{name}.log"
        self._data = data / name
        self._command = [
            *prefix,
            *("etcd", "--name", name, "--data-dir", str(data / name)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", cluster, "--initial-cluster-state", "new"),
            *("--logger", "zap"),
            *(tls.options if tls else ()),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Starts the process, and waits for nothing."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait_until_healthy(self) -> None:
        """Until this member knows a leader. Raises AssertionError when the process ends first."""
        until_sync(self._healthy, f"etcd at {self.endpoint} is healthy", timeout_s=60)

    def start(self) -> None:
        self.launch()
        self.wait_until_healthy()

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def copy_data(self, to: Path) -> None:
        """Copy its data, as a backup does. It does not run."""
        shutil.copytree(self._data, to)

    def remove_data(self, older: Path | None = None) -> None:
        """Remove its data, or replace it by an older copy. It does not run."""
        shutil.rmtree(self._data)
        if older is not None:
            shutil.copytree(older, self._data)

    def lose_data(self, older: Path | None = None) -> None:
        """Kill it, and start it again without its data, or with an older copy of it."""
        self.kill()
        self.remove_data(older)
        self.start()

    def send_signal(self, number: signal.Signals) -> None:
        """For example SIGSTOP."""
        assert self._process is not None, "not started"
        self._process.send_signal(number)

    @property
    def led_term(self) -> int:
        """The last term of the cluster that it became leader of, by its log; 0: none."""
        terms = re.findall(r"became leader at term (\d+)", self._log.read_text())
        return max(map(int, terms), default=0)

    def _healthy(self) -> bool:
        assert self._process is not None, "not started"
        if self._process.poll() is not None:
            raise RuntimeError(f"etcd ended: {self._log.read_text()[-2000:]}")
        try:
            context = self._tls.context() if self._tls else None
            with urllib.request.urlopen(self._health, timeout=2, context=context) as answer:
                return b'"true"' in answer.read()
        except (urllib.error.URLError, OSError):
            return False

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(signal.SIGCONT)
        process.send_signal(number)
        try:
            process.wait(STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def etcd_members(
    data: Path, count: int = 1, tls: EtcdTls | None = None
) -> Iterator[list[EtcdMember]]:
    """A cluster of `count` members that is healthy; its files are below `data`."""
    require_etcd()
    ports = _free_ports(2 * count)
    pairs = list(zip(ports[::2], ports[1::2], strict=True))
    names = [f"etcd{place}" for place in range(count)]
    cluster = ",".join(
        f"{name}=http://127.0.0.1:{peer}" for name, (_, peer) in zip(names, pairs, strict=True)
    )
    members = [
        EtcdMember(data, name, pair, cluster, tls) for name, pair in zip(names, pairs, strict=True)
    ]
    try:
        for member in members:
            member.launch()
        for member in members:
            member.wait_until_healthy()
        yield members
    finally:
        for member in members:
            member.kill()


def _free_ports(count: int) -> list[int]:
    """etcd takes no port 0. They are bound at once, so that they differ."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
