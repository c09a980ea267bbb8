"""Run the console: `python -m aerobee_console`, which `aerobee console` starts."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Annotated

import click
import uvicorn
from starlette.applications import Starlette

from aerobee_cli.command_line import Function, Option
from aerobee_cli.doctor.cluster import diagnose
from aerobee_cli.main import explain
from aerobee_cli.options import DEFAULT_NAMESRV, BadOption
from aerobee_cli.output import silence_client
from aerobee_client import AsyncAdminClient, Credentials, Tls
from aerobee_client.cluster.namesrv import namesrv_addresses
from aerobee_console.masking import BadMask, Mask
from aerobee_console.options import DEFAULT_HOST, DEFAULT_PORT, Options
from aerobee_console.reading.overview import Doctor
from aerobee_console.reading.source import Source
from aerobee_console.web.app import application
from aerobee_console.web.console import Console
from aerobee_console.web.login import Entrance, Rights, Sessions, reads_only_text
from aerobee_console.web.paths import BadBasePath
from aerobee_console.web.paths import base_path as checked_base_path
from aerobee_wire.certificates import needs_no_tls
from aerobee_wire.status import MqError

# Open event streams end when the console stops.
STOP_S = 2


def console(
    *,
    namesrv: Annotated[
        str,
        Option(
            metavar="H:P;H:P",
            envvar="NAMESRV_ADDR",
            help="Name servers. Default: NAMESRV_ADDR, or 127.0.0.1:9876.",
        ),
    ] = DEFAULT_NAMESRV,
    host: Annotated[str, Option(metavar="H", help="The address to listen on.")] = DEFAULT_HOST,
    port: Annotated[
        int, Option(min=0, max=65_535, metavar="P", help="0 picks a free one.")
    ] = DEFAULT_PORT,
    host_name: Annotated[
        list[str] | None,
        Option(
            metavar="NAME",
            help="A name under which browsers may call it, besides loopback. May be repeated.",
        ),
    ] = None,
    read_only: Annotated[bool, Option("--read-only", help="Refuse all changes.")] = False,
    no_bodies: Annotated[bool, Option("--no-bodies", help="Hide the bodies of messages.")] = False,
    mask: Annotated[
        list[str] | None,
        Option(
            metavar="PATH|PROPERTY",
            help="Mask values of bodies at a JSON path such as $.card.number, or a property. "
            "May be repeated.",
        ),
    ] = None,
    login: Annotated[
        bool, Option("--login", help="Visitors log in as users, whose policies decide.")
    ] = False,
    tls_cert: Annotated[
        str, Option(metavar="FILE", help="Serve HTTPS with this certificate, in PEM.")
    ] = "",
    tls_key: Annotated[str, Option(metavar="FILE", help="The key of --tls-cert, in PEM.")] = "",
    trusted_proxy: Annotated[
        list[str] | None,
        Option(
            metavar="CIDR",
            help="Answer only reverse proxies in this network, which serve HTTPS. May be repeated.",
        ),
    ] = None,
    base_path: Annotated[
        str,
        Option(
            metavar="PATH",
            help="Serve the console below this path, such as /aerobee. A reverse proxy must pass "
            "it on unchanged.",
        ),
    ] = "",
    insecure: Annotated[
        bool,
        Option("--insecure", help="Listen on other addresses than loopback, without a login."),
    ] = False,
    fd: Annotated[
        int | None,
        Option(
            min=0, metavar="N", help="Listen on this open socket in place of --host and --port."
        ),
    ] = None,
    idle_exit: Annotated[
        float, Option(min=0, metavar="S", help="End after S seconds without a visitor; 0: never.")
    ] = 0,
) -> None:
    """Serve the console: pages about the cluster for a browser.

    The console prints one line of JSON with its address when it is ready. On other addresses than
    loopback, it needs --login and HTTPS, unless --insecure is given.
    """
    proxies = _networks(trusted_proxy or ())
    if bool(tls_cert) != bool(tls_key):
        raise BadOption("--tls-cert and --tls-key belong together: give both or none")
    if not needs_no_tls(host) and not insecure:
        _check_closed(host, login, is_secure=bool(tls_cert or proxies))
    if login and Tls.from_environment() is None:
        raise BadOption(
            "--login: name servers and brokers check users only over TLS; set "
            "AEROBEE_TLS_TRUST_CERT_PATH to the authority of their certificates"
        )
    try:
        masks = Mask.of(mask or ())
    except BadMask as error:
        raise BadOption(f"--mask: {error}") from None
    try:
        base = checked_base_path(base_path)
    except BadBasePath as error:
        raise BadOption(f"--base-path: {error}") from None
    options = Options(
        namesrvs=namesrv_addresses(namesrv),
        host=host,
        port=port,
        host_names=tuple(host_name or ()),
        read_only=read_only,
        bodies=not no_bodies,
        mask=masks,
        login=login,
        tls=bool(tls_cert),
        base_path=base,
        trusted_proxies=proxies,
    )
    silence_client()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if fd is None:
        listener = socket.create_server((host, port), family=family)
    else:
        listener = socket.socket(fileno=fd)
    _serve(options, listener, idle_exit, tls_cert, tls_key)


def _networks(values: Sequence[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(ip_network(value) for value in values)
    except ValueError as error:
        raise BadOption(f"--trusted-proxy: {error}: give a network such as 10.0.0.0/24") from None


def _check_closed(host: str, login: bool, *, is_secure: bool) -> None:
    """Raise BadOption if everyone could use a console that listens on `host`."""
    if not login:
        raise BadOption(
            f"--host {host}: without --login, everyone who reaches this address could change the "
            "cluster; give --login and --tls-cert, use 127.0.0.1, or --insecure behind a firewall"
        )
    if not is_secure:
        raise BadOption(
            f"--host {host}: secret keys would cross the network in plaintext; give --tls-cert and "
            "--tls-key, --trusted-proxy for a reverse proxy with HTTPS, or --insecure"
        )


def _insecure(options: Options, host: str) -> str:
    """Return why the console, which listens on `host`, or its cluster is open, or ""."""
    if _is_open(options, host):
        return "everyone who reaches the address of this console can use it, or read secret keys"
    namesrvs = [address.rpartition(":")[0].strip("[]") for address in options.namesrvs]
    if Tls.from_environment() is None and not all(map(needs_no_tls, namesrvs)):
        return "the name servers are open: everyone who reaches the cluster can change it"
    return ""


def _is_open(options: Options, host: str) -> bool:
    """Return whether other machines reach the console, without a login or in plaintext."""
    return not needs_no_tls(host) and not (options.login and options.secure)


def _serve(
    options: Options, listener: socket.socket, idle_exit_s: float, tls_cert: str, tls_key: str
) -> None:
    options = replace(options, insecure=_insecure(options, listener.getsockname()[0]))
    config = uvicorn.Config(
        _application(options),
        ssl_certfile=tls_cert or None,
        ssl_keyfile=tls_key or None,
        proxy_headers=False,  # SecurityMiddleware reads them, of trusted proxies only
        loop="asyncio",
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=STOP_S,
    )
    _Server(config, listener, idle_exit_s, options).run(sockets=[listener])


def _application(options: Options) -> Starlette:
    def now_ms() -> int:
        return time.time_ns() // 1_000_000

    def opened(credentials: Credentials | None = None, rights: Rights | None = None) -> Console:
        rights = rights or Rights()
        given = replace(options, audit=rights.audit)
        if not rights.changes and credentials and not options.read_only:
            given = replace(
                given, read_only=True, read_only_reason=reads_only_text(credentials.access_key)
            )
        admin = AsyncAdminClient(options.namesrvs, credentials=credentials)
        source = Source(admin, options.namesrvs, now_ms, options.mask)
        check = partial(diagnose, credentials=credentials)
        return Console(given, source, Doctor(options.namesrvs, now_ms, check), credentials)

    entrance = None
    if options.login:
        sessions = Sessions(opened, time.monotonic)
        entrance = Entrance(opened(), sessions, time.monotonic, _log)
    return application(entrance.console if entrance else opened(), entrance)


def _log(event: str, *, level: str = "info", **fields: str) -> None:
    """Print a line of JSON, with the fields of the logs of services."""
    at = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    line = {**fields, "event": event, "service": "console", "level": level, "timestamp": at}
    print(json.dumps(line), flush=True)


class _Server(uvicorn.Server):
    """A server that prints a line when it is ready, and another one when it has stopped.

    It ends after `idle_exit_s` without a request; 0 for never.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        listener: socket.socket,
        idle_exit_s: float,
        options: Options,
    ) -> None:
        super().__init__(config)
        self._idle_exit_s = idle_exit_s
        self._requests = 0
        self._visited_s = time.monotonic()
        host, port, *_ = listener.getsockname()
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._is_open = _is_open(options, host)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._is_open:
            _log("insecure", level="warning", address=self._address)
        _log("ready", address=self._address)

    async def on_tick(self, counter: int) -> bool:
        """Return whether to end. Called ten times a second."""
        state, now_s = self.server_state, time.monotonic()
        if state.tasks or state.total_requests != self._requests:  # a stream is a task
            self._requests, self._visited_s = state.total_requests, now_s
        is_idle = bool(self._idle_exit_s) and now_s - self._visited_s >= self._idle_exit_s
        return await super().on_tick(counter) or is_idle

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        _log("stopped")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop at SIGINT and SIGTERM. An orderly stop ends the process with exit code 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        yield


def main() -> int:
    """Run the console and return its exit code."""
    command = Function(console, "console", "Example: aerobee console --port 8082").command()
    try:
        command.main(prog_name="aerobee console", standalone_mode=False)
    except click.ClickException as error:
        print(f"error: {error.format_message()} (see aerobee console --help)", file=sys.stderr)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except (OSError, MqError) as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
