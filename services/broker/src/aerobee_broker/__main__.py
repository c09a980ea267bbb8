"""`python -m aerobee_broker`: the command line of a broker. Parses, and hands over."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import structlog

from aerobee_broker.app import BrokerApp
from aerobee_broker.config import BrokerOptions
from aerobee_chassis import logs, process
from aerobee_chassis.config import load
from aerobee_chassis.errors import ConfigError

EXIT_BAD_OPTIONS = 2

EXAMPLE = """\
example:
  python -m aerobee_broker --data /var/lib/aerobee --namesrv 10.0.0.1:9876 --set brokerName=broker-a

An option comes from the command line, else --set, else the environment (AEROBEE_LISTEN_PORT,
NAMESRV_ADDR), else the file (RocketMQ's broker.conf, or JSON). Keys are RocketMQ's where it has
one.
"""


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    try:
        options = _options(given)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_BAD_OPTIONS
    if given.print_config:
        print(json.dumps(options.to_json(), indent=2))
        return 0
    logs.configure("broker", options.log_level)
    if options.ignored_keys:
        structlog.get_logger().warning("options without effect", keys=options.ignored_keys)
    for hint in options.misspelt_variables:
        structlog.get_logger().warning("environment variable without effect", hint=hint)
    return process.run(lambda: BrokerApp(options), options.grpc_transport)


def _options(given: argparse.Namespace) -> BrokerOptions:
    return load(
        BrokerOptions,
        file=given.config,
        environ=os.environ,
        sets=given.sets,
        cli={
            "listenPort": given.port,
            "bindAddress": given.host,
            "namesrvAddr": given.namesrv,
            "storePathRootDir": given.data / "broker" / "store" if given.data else None,
        },
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m aerobee_broker",
        description="The broker: stores messages, and gives them to consumers.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, metavar="P", help="10911; 0 picks a free one")
    parser.add_argument("--host", metavar="H", help="address to listen on (127.0.0.1)")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="keeps DIR/broker/store (~/aerobee)"
    )
    parser.add_argument("--namesrv", metavar="H:P;H:P", help="every name server")
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
