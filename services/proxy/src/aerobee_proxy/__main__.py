"""`python -m aerobee_proxy`: the command line of a proxy. Parses it and runs the app."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import structlog

from aerobee_chassis import logs, process
from aerobee_chassis.config import load
from aerobee_chassis.errors import ConfigError
from aerobee_proxy import workers
from aerobee_proxy.app import ProxyApp
from aerobee_proxy.config import ProxyOptions

EXIT_BAD_OPTIONS = 2

EXAMPLE = """\
example:
  python -m aerobee_proxy --port 8081 --namesrv 127.0.0.1:9876

An option comes from the command line, else --set, else the environment (AEROBEE_GRPC_SERVER_PORT),
else the file (RocketMQ's rmq-proxy.json, or key=value lines). Keys are RocketMQ's where it has one.
"""


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        options = load(
            ProxyOptions,
            file=given.config,
            environ=os.environ,
            sets=given.sets,
            cli={
                "grpcServerPort": given.port,
                "bindAddress": given.host,
                "namesrvAddr": given.namesrv,
            },
        )
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_OPTIONS
    if given.print_config:
        print(json.dumps(options.to_json(), indent=2))
        return 0
    logs.configure("proxy", options.log_level)
    if options.ignored_keys:
        structlog.get_logger().warning("options_without_effect", keys=options.ignored_keys)
    for hint in options.misspelt_variables:
        structlog.get_logger().warning("variable_without_effect", hint=hint)
    if options.workers > 1:
        return workers.run(options)
    return process.run(lambda: ProxyApp(options), options.grpc_transport)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m aerobee_proxy",
        description="The proxy: the official RocketMQ 5 SDKs connect to it unchanged.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, metavar="P", help="8081; 0 picks a free one")
    parser.add_argument("--host", metavar="H", help="address to listen on (127.0.0.1)")
    parser.add_argument("--namesrv", metavar="H:P;H:P", help="name servers")
    parser.add_argument("--config", type=Path, metavar="FILE", help="file of options")
    parser.add_argument(
        "--set", action="append", default=[], dest="sets", metavar="KEY=VALUE", help="one option"
    )
    parser.add_argument(
        "--print-config", action="store_true", help="show the resulting options and exit"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
