"""Run a proxy from the command line: `python -m aerobee_proxy`."""

from __future__ import annotations

import sys

from aerobee_chassis import command_line
from aerobee_chassis.command_line import Flag
from aerobee_proxy.config import ProxyOptions

EXAMPLE = """\
example:
  python -m aerobee_proxy --port 8081 --namesrv 127.0.0.1:9876 --workers 2

An option comes from the command line, else --set, else the environment (AEROBEE_GRPC_SERVER_PORT),
else the file (RocketMQ's rmq-proxy.json, or key=value lines). Keys are RocketMQ's where it has one.
"""

FLAGS = (
    Flag("--port", "P", "grpcServerPort", "8081; 0 picks a free one", int),
    Flag("--host", "H", "bindAddress", "address to listen on (127.0.0.1)"),
    Flag("--namesrv", "H:P;H:P", "namesrvAddr", "name servers"),
    Flag("--workers", "N", "workers", "processes that share the port, each on a core (1)", int),
)


def main(arguments: list[str] | None = None) -> int:
    return command_line.run(
        arguments,
        service="proxy",
        description="The proxy: the official RocketMQ 5 SDKs connect to it unchanged.",
        example=EXAMPLE,
        model=ProxyOptions,
        flags=FLAGS,
        serve=serve,
    )


def serve(options: ProxyOptions) -> int:
    # The command line needs the service only now: not for --help or --print-config.
    from aerobee_chassis import process
    from aerobee_proxy import workers
    from aerobee_proxy.app import ProxyApp

    if options.workers > 1:
        return workers.run(options)
    return process.run(lambda: ProxyApp(options))


if __name__ == "__main__":
    sys.exit(main())
