"""Run tests with all services closed: `pytest --secure`, and `make secure-suites`.

The tests stay as they are. `enable` makes an authority for this process, and

* services of `ServiceProcess` enforce TLS, with a certificate of their role, and check users;
* Aerobee's clients and the command have the certificate of the role admin, by the environment;
* channels that tests open without TLS use TLS, with this certificate;
* official SDKs use TLS, and sign as USER, who is SUPER.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from aerobee_cli.authority import Authority, settings_of, variable_of
from aerobee_wire.identity import ADMIN, BROKER, NAMESRV, PROXY, Identity
from support.running.canary import SECRET

CLUSTER = "DefaultCluster"
USER = "suite"
HOSTS = ["localhost", "127.0.0.1", "::1"]
_ROLES = {"aerobee_namesrv": NAMESRV, "aerobee_broker": BROKER, "aerobee_proxy": PROXY}
_DAYS = 2
_FOREIGN = "it serves in the test's own process, or is the test kit, whose services are open"
# Why tests cannot run with closed services, by the begin of their id.
CANNOT = {
    "tests/integration/client/test_transport.py": _FOREIGN,
    "tests/integration/client/test_wrong_server.py": _FOREIGN,
    "tests/integration/client/testing/": _FOREIGN,
    "tests/integration/client/test_examples.py::test_an_example_runs[testing]": _FOREIGN,
    "tests/integration/client/test_new_master.py": "it registers brokers without a certificate",
    "tests/integration/broker/replication/rpc/": _FOREIGN,
    "tests/integration/broker/replication/election/coordinators/": _FOREIGN,
    "tests/integration/broker/replication/test_failover_to_try.py": "its commands are of a page",
}


class Secure:
    """The certificates of this process. They are made when they are needed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._authority = Authority(directory, datetime.now(UTC))
        self._authority.init(CLUSTER, "broker-a", HOSTS, _DAYS)
        self._making = threading.Lock()

    @property
    def roots(self) -> Path:
        return self.directory / "ca.crt"

    def certificate(self, role: str) -> Path:
        return self.directory / f"{role}.crt"

    def client_environment(self) -> dict[str, str]:
        """Return the variables of the command and of Aerobee's clients."""
        return _variables(settings_of(self.directory, Identity(CLUSTER, ADMIN, ADMIN)))

    def service_environment(self, module: str, arguments: Sequence[str]) -> dict[str, str]:
        """Return the variables of a service, or {} if the module is none."""
        role = _ROLES.get(module)
        if role is None:
            return {}
        settings = self.service_options(role, broker_name(arguments) if role == BROKER else role)
        settings.pop("brokerName", None)
        return _variables(settings)

    def service_options(self, role: str, name: str) -> dict[str, str]:
        """Return the options of a service."""
        with self._making:
            if not self.certificate(name).exists():
                self._authority.issue(role, name, HOSTS, _DAYS)
        settings = settings_of(self.directory, Identity(CLUSTER, role, name), name)
        if role != PROXY:
            user = {"username": USER, "password": SECRET}
            settings["initAuthenticationUser"] = json.dumps(user)
        return settings


def broker_name(arguments: Sequence[str]) -> str:
    """Return the brokerName of a broker's arguments: "--set=brokerName=X" or "--set" "…"."""
    for argument in arguments:
        key, _, value = argument.removeprefix("--set=").partition("=")
        if key == "brokerName":
            return value
    return socket.gethostname()


def _variables(settings: Mapping[str, str]) -> dict[str, str]:
    return {variable_of(key): value for key, value in settings.items()}


_enabled: list[Secure] = []  # at most one


def enabled() -> Secure | None:
    """Return the certificates, or None if services are open."""
    return _enabled[0] if _enabled else None


def options_in_process(role: str, name: str) -> dict[str, str]:
    """Return the options that close a service in the test's own process, or {} if it is open."""
    closed = enabled()
    return closed.service_options(role, name) if closed is not None else {}


def enable() -> None:
    """Close the services that this process starts from now on."""
    secure = Secure(Path(tempfile.mkdtemp(prefix="aerobee-secure-")) / "secure")
    _enabled.append(secure)
    os.environ.update(secure.client_environment())
    _encrypt_channels(secure)


def disable() -> None:
    """Remove the certificates."""
    for secure in _enabled:
        shutil.rmtree(secure.directory.parent)
    _enabled.clear()


def reason_against(nodeid: str, fixtures: Collection[str]) -> str:
    """Return why a test with these fixtures cannot run with closed services, or ""."""
    if nodeid.startswith("tests/integration/spark/") and "cluster" in fixtures:
        return _FOREIGN  # its brokers are lists
    return next((why for begin, why in CANNOT.items() if nodeid.startswith(begin)), "")


def _encrypt_channels(secure: Secure) -> None:
    pem = [
        path.read_bytes()
        for path in (
            secure.roots,
            secure.certificate(ADMIN).with_suffix(".key"),
            secure.certificate(ADMIN),
        )
    ]
    name = ("grpc.ssl_target_name_override", "localhost")

    def encrypted(module: Any) -> Any:
        open_secure = module.secure_channel

        def channel(target: str, options: Any = None, compression: Any = None, **more: Any) -> Any:
            credentials = grpc.ssl_channel_credentials(*pem)
            chosen = [*(options or ()), name]
            return open_secure(target, credentials, chosen, compression, **more)

        return channel

    grpc.insecure_channel = encrypted(grpc)
    grpc.aio.insecure_channel = encrypted(grpc.aio)
