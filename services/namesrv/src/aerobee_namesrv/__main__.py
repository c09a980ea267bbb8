"""Run the command line of a name server: `python -m aerobee_namesrv`."""

from __future__ import annotations

import sys
from pathlib import Path

from aerobee_chassis import command_line
from aerobee_chassis.command_line import Flag
from aerobee_namesrv.config import NamesrvOptions

EXAMPLE = """\
example:
  python -m aerobee_namesrv --port 9876 --data /var/lib/aerobee --set orderMessageEnable=true

An option comes from the command line, else --set, else the environment (AEROBEE_LISTEN_PORT),
else the file (RocketMQ's key=value lines, or JSON). Keys are RocketMQ's where it has one.
"""

FLAGS = (
    Flag("--port", "P", "listenPort", "9876; 0 picks a free one", int),
    Flag("--host", "H", "bindAddress", "address to listen on (127.0.0.1)"),
    Flag(
        "--data",
        "DIR",
        "kvConfigPath",
        "keeps DIR/namesrv/kvConfig.json (~/aerobee)",
        lambda folder: Path(folder) / "namesrv" / "kvConfig.json",
    ),
)


def main(arguments: list[str] | None = None) -> int:
    return command_line.run(
        arguments,
        service="namesrv",
        description="The name server: keeps which broker serves which topic, and answers clients.",
        example=EXAMPLE,
        model=NamesrvOptions,
        flags=FLAGS,
        serve=serve,
    )


def serve(options: NamesrvOptions) -> int:
    # The command line needs the service only now: not for --help or --print-config.
    from aerobee_chassis import process
    from aerobee_namesrv.app import NamesrvApp

    return process.run(lambda: NamesrvApp(options))


if __name__ == "__main__":
    sys.exit(main())
