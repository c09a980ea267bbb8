"""Run the command line of a broker: `python -m aerobee_broker`."""

from __future__ import annotations

import sys
from pathlib import Path

from aerobee_broker.config import BrokerOptions
from aerobee_chassis import command_line
from aerobee_chassis.command_line import Flag

EXAMPLE = """\
example:
  python -m aerobee_broker --data /var/lib/aerobee --namesrv 10.0.0.1:9876 --set brokerName=broker-a
  python -m aerobee_broker --shards 2 --set brokerName=broker-a  # also runs broker-a-1

An option comes from the command line, else --set, else the environment (AEROBEE_LISTEN_PORT,
NAMESRV_ADDR), else the file (RocketMQ's broker.conf, or JSON). Keys are RocketMQ's where it has
one.
"""

FLAGS = (
    Flag("--port", "P", "listenPort", "10911; 0 picks a free one", int),
    Flag("--host", "H", "bindAddress", "address to listen on (127.0.0.1)"),
    Flag(
        "--data",
        "DIR",
        "storePathRootDir",
        "keeps DIR/broker/store (~/aerobee)",
        lambda folder: Path(folder) / "broker" / "store",
    ),
    Flag("--namesrv", "H:P;H:P", "namesrvAddr", "every name server"),
    Flag("--shards", "N", "shards", "brokers to run, each with a core and a port (1)", int),
)


def main(arguments: list[str] | None = None) -> int:
    return command_line.run(
        arguments,
        service="broker",
        description="The broker: stores messages, and gives them to consumers.",
        example=EXAMPLE,
        model=BrokerOptions,
        flags=FLAGS,
        serve=serve,
    )


def serve(options: BrokerOptions) -> int:
    # The command line needs the service only now: not for --help or --print-config.
    from aerobee_broker import shards
    from aerobee_broker.app import BrokerApp
    from aerobee_chassis import process

    if options.shards > 1:
        return shards.run(options)
    alone = shards.options_of_shard(options, 0, {})
    return process.run(lambda: BrokerApp(alone))


if __name__ == "__main__":
    sys.exit(main())
