"""Run the command line of a suite: `python -m aerobee_suite`."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from signal import SIGTERM

import structlog

from aerobee_chassis import logs
from aerobee_chassis.command_line import EXIT_BAD_OPTIONS, collecting_rarely, warn_if_insecure
from aerobee_chassis.errors import ConfigError
from aerobee_suite.options import Places, SuiteOptions, read

SERVICE = "suite"
EXAMPLE = """\
example:
  python -m aerobee_suite --data /var/lib/aerobee --set mappedFileSizeCommitLog=67108864

Ports are 9876 (name server), 10911 (broker) and 8081 (proxy) unless given; 0 picks a free one. An
option of the broker is --set KEY=VALUE, of the others --set namesrv.KEY=VALUE and
--set proxy.KEY=VALUE.
"""


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    places = Places(
        data=given.data,
        host=given.host,
        namesrv_port=given.namesrv_port,
        broker_port=given.broker_port,
        proxy_port=given.proxy_port,
        insecure=given.insecure,
    )
    try:
        options = read(places, given.sets, os.environ)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_OPTIONS
    secrets = options.namesrv.secrets | options.broker.secrets | options.proxy.secrets
    logs.configure(SERVICE, options.broker.log_level, options.broker.log_format, secrets)
    _warn(options)
    if given.until_stdin_ends:
        threading.Thread(target=_stop_at_end_of_stdin, name="stdin", daemon=True).start()
    with collecting_rarely():
        return run(options, test_control=given.test_control)


def run(options: SuiteOptions, *, test_control: bool) -> int:
    """Run a suite until SIGTERM or SIGINT, and return the exit code."""
    from aerobee_chassis import process
    from aerobee_suite.app import SuiteApp

    if not test_control:
        return process.run(lambda: SuiteApp(options))
    from aerobee_suite.control.control import Control
    from aerobee_suite.control.virtual_time import VirtualTimeLoop

    structlog.get_logger().warning(
        "test_control",
        hint="any client of the name server can move time, kill and refuse",
    )
    return process.run(lambda: SuiteApp(options, Control()), loop_factory=VirtualTimeLoop)


def _warn(options: SuiteOptions) -> None:
    log = structlog.get_logger()
    warn_if_insecure(*(each for _, each in options.each()))
    hints: set[str] = set()
    for service, each in options.each():
        if each.ignored_keys:
            log.warning("options_without_effect", of=service, keys=each.ignored_keys)
        for note in each.notes:
            log.warning("option_note", of=service, note=note)
        hints |= set(each.misspelt_variables)
    for hint in sorted(hints):
        log.warning("environment_variable_without_effect", hint=hint)


def _stop_at_end_of_stdin() -> None:
    """Stop this process when its parent closes stdin or exits."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m aerobee_suite",
        description="Name server, broker and proxy in one process.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add: Callable[..., object] = parser.add_argument
    add("--data", type=Path, metavar="DIR", help="keeps DIR/namesrv and DIR/broker (~/aerobee)")
    add("--host", metavar="H", help="address to listen on (127.0.0.1)")
    for service in ("namesrv", "broker", "proxy"):
        add(f"--{service}-port", type=int, metavar="P", help=f"of the {service}; 0: a free one")
    add("--set", action="append", default=[], dest="sets", metavar="KEY=VALUE", help="one option")
    add(
        "--insecure",
        action="store_true",
        default=None,
        help="listen on other addresses than loopback although the ports serve each caller",
    )
    add("--until-stdin-ends", action="store_true", help="stop when stdin is closed")
    add(
        "--test-control",
        action="store_true",
        help="for tests only: virtual time and faults, on the port of the name server",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
