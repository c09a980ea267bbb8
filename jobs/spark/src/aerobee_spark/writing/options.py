"""Parse the options of a write: names, defaults and allowed values.

docs/spark.md describes the options. This module does no I/O.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aerobee_spark.access import FROM_ENVIRONMENT, Access
from aerobee_spark.access import OPTIONS as ACCESS_OPTIONS
from aerobee_spark.errors import OptionError
from aerobee_spark.options import (
    SHARED_ALIASES,
    boolean,
    count,
    fields_of,
    named,
    of_table,
    text,
    with_name_server,
)
from aerobee_spark.reading.options import ALIASES as READ_ALIASES
from aerobee_spark.reading.options import OPTIONS as READ_OPTIONS
from aerobee_wire import topics
from aerobee_wire.redrive import Target

# Options of Spark itself, which Spark passes to the data source too.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True)
class WriteOptions:
    name_server: str
    # The user and the certificates of the calls.
    access: Access = FROM_ENVIRONMENT
    # If empty, the column topic names the topic of each row.
    topic: str = ""
    create_topic: bool = False
    # The limit for all tasks together. None stands for no limit.
    max_per_second: int | None = None
    # The largest body in bytes. The broker's maxMessageSize has the same default.
    max_message_size: int = 4 * 1024 * 1024
    # Timeout of one request, including its retries.
    send_timeout_ms: int = 30_000
    # The message ids of a batch are derived from this id.
    write_id: str = ""
    # The target to which dead letters are sent again. If None, rows are new messages.
    redrive: Target | None = None

    @classmethod
    def parse(
        cls, given: Mapping[str, str], environ: Mapping[str, str] = os.environ
    ) -> WriteOptions:
        """Parse the options of a write. Without the option writeId, a random write id is used.

        Args:
            given: option → text, in any letter case, as Spark passes them.
            environ: environment variables of the driver.

        Raises:
            OptionError: an option is unknown (the message names the nearest one), missing or
                invalid.
        """
        given = {
            name: value for name, value in of_table(given).items() if name.lower() not in SPARKS_OWN
        }
        if not given:
            raise OptionError(
                "no options were set: Spark does not pass the options of CREATE TABLE; use CREATE "
                "TEMPORARY VIEW v USING rocketmq OPTIONS (…), then INSERT INTO v",
                "topic",
            )
        _check_of_write(given)
        values = with_name_server(named(given, _NAMES), environ)
        fields = {"write_id": str(uuid.uuid4())} | fields_of(values, OPTIONS)
        access = Access.take(fields)
        if "redrive" in values and "topic" in values:
            raise OptionError(
                "redrive selects where dead letters go: remove the option topic, or set redrive to "
                "topic:NAME",
                "topic",
            )
        return cls(access=access, **fields)


def _check_of_write(given: Mapping[str, str]) -> None:
    """Raise OptionError if an option was set that only reads support."""
    of_read = {name.lower(): name for name in (*READ_OPTIONS, *READ_ALIASES)}
    for key in given:
        name = of_read.get(key.lower())
        if name is not None and key.lower() not in _NAMES:
            raise OptionError(
                f"the option {name} is only for spark.read: remove it from the write",
                name,
            )


def _topic(value: str) -> str:
    topics.check_topic(value)
    if value in topics.SEND_REFUSED_TOPICS:
        raise ValueError("clients cannot send to a system topic: choose another topic")
    if topics.is_retry(value):
        raise ValueError(
            "the topic belongs to a consumer group: use the option redrive, or another topic"
        )
    return value


# name → (field of WriteOptions, parser)
OPTIONS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "nameServer": ("name_server", text),
    **ACCESS_OPTIONS,
    "topic": ("topic", _topic),
    "createTopic": ("create_topic", boolean),
    "maxMessagesPerSecond": ("max_per_second", count),
    "maxMessageSize": ("max_message_size", count),
    "sendTimeoutMs": ("send_timeout_ms", count),
    "writeId": ("write_id", text),
    "redrive": ("redrive", Target.parse),
}
_NAMES = {name.lower(): name for name in OPTIONS} | {
    alias.lower(): name for alias, name in SHARED_ALIASES.items()
}
