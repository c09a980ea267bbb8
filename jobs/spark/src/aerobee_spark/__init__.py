"""Read and write RocketMQ topics with Spark, and report dead letters.

The data source is `format("rocketmq")`. This module imports almost nothing at once, because Spark
loads the package in short-lived planner processes.
"""

from __future__ import annotations

from aerobee_spark.closed_pipes import accept_closed_pipes

# Here, because a process of Spark that uses this package imports this module first.
accept_closed_pipes()

TYPE_CHECKING = False  # `typing` is slow to import, and type checkers know this name
if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    if name == "__version__":
        from aerobee_wire.version import VERSION

        return VERSION
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
