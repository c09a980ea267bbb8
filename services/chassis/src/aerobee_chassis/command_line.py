"""Implement the command line of a service: read its options, print errors, run the service."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from aerobee_chassis import logs
from aerobee_chassis.config import Options, OptionsType, load
from aerobee_chassis.errors import ConfigError
from aerobee_wire import closed_pipe

EXIT_BAD_OPTIONS = 2
# Imports create objects that live as long as the process. With the default threshold (700), looking
# for garbage among them takes a tenth of the start of a broker. `process` sets another threshold
# when the service is ready.
YOUNG_OBJECTS_OF_START = 50_000


@dataclass(frozen=True, slots=True)
class Flag:
    """A short form for an option: `--port P` for the key `listenPort`."""

    name: str
    metavar: str
    key: str
    help: str
    type: Callable[[str], Any] = str


def run(
    arguments: Sequence[str] | None,
    *,
    service: str,
    description: str,
    example: str,
    model: type[OptionsType],
    flags: Sequence[Flag],
    serve: Callable[[OptionsType], int],
) -> int:
    """Run a service with the options of command line, environment and file; return the exit code.

    `service` is its name in the log. `arguments` is None to use the arguments of the process.
    `serve` imports the service.
    """
    parser = _parser(f"python -m aerobee_{service}", description, example, flags)
    given = parser.parse_args(arguments)
    try:
        options = load(
            model,
            file=given.config,
            environ=os.environ,
            sets=given.sets,
            cli={
                **{flag.key: getattr(given, flag.key) for flag in flags},
                "insecure": given.insecure,
            },
        )
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_OPTIONS
    if given.print_config:
        for warning in _warnings(options):
            print(f"warning: {warning}", file=sys.stderr)
        try:
            print(json.dumps(options.to_json(), indent=2), flush=True)
        except BrokenPipeError:
            return closed_pipe.discard_output()
        return 0
    logs.configure(service, options.log_level, options.log_format, options.secrets)
    warn_if_insecure(options)
    if options.ignored_keys:
        structlog.get_logger().warning("options_without_effect", keys=options.ignored_keys)
    for note in options.notes:
        structlog.get_logger().warning("option_note", note=note)
    for hint in options.misspelt_variables:
        structlog.get_logger().warning("environment_variable_without_effect", hint=hint)
    with collecting_rarely():
        return serve(options)


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Let the garbage collector wait while a service is imported and started in the block."""
    before = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS_OF_START, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def warn_if_insecure(*of_services: Options) -> None:
    """Log one warning if other machines may reach ports that serve each caller."""
    hosts = dict.fromkeys(each.bind_address for each in of_services if each.is_insecure)
    if hosts:
        structlog.get_logger().warning(
            "insecure",
            listening_on=", ".join(hosts),
            hint="the port serves each caller that reaches it: see docs/security.md",
        )


def _warnings(options: Options) -> Iterator[str]:
    """Yield what the log of a service says about its options at the start."""
    if options.ignored_keys:
        yield f"without effect here: {', '.join(options.ignored_keys)}"
    yield from options.notes
    yield from options.misspelt_variables


class _Once(argparse.Action):
    """Store the value of an option, and refuse a second one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        given = getattr(namespace, self.dest)
        if given is not None:
            parser.error(f"{option_string} is given twice ('{given}', '{values}'): give it once")
        setattr(namespace, self.dest, values)


def _parser(
    program: str, description: str, example: str, flags: Sequence[Flag]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=example,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for flag in flags:
        parser.add_argument(
            flag.name,
            action=_Once,
            dest=flag.key,
            type=flag.type,
            metavar=flag.metavar,
            help=flag.help,
        )
    parser.add_argument("--config", action=_Once, type=Path, metavar="FILE", help="file of options")
    parser.add_argument(
        "--set", action="append", default=[], dest="sets", metavar="KEY=VALUE", help="one option"
    )
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="listen on other addresses than loopback although the port serves each caller",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="show the resulting options and exit"
    )
    return parser
