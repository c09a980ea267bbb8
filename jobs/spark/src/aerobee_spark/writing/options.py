"""The options of a write: names, defaults, allowed values. docs/spark.md describes them. Pure."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aerobee_client.admin.redriving.rules import Target
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

# Of Spark itself, which passes them on.
SPARKS_OWN = frozenset({"checkpointlocation", "queryname"})


@dataclass(frozen=True, slots=True)
class WriteOptions:
    name_server: str
    # "": the column topic says it.
    topic: str = ""
    create_topic: bool = False
    # Of all tasks together; None: as many as the brokers take.
    max_per_second: int | None = None
    # Bytes of a body; the broker's maxMessageSize is the same by default.
    max_message_size: int = 4 * 1024 * 1024
    # Of one request, retries included.
    send_timeout_ms: int = 30_000
    # What the message ids of a batch are made of.
    write_id: str = ""
    # Where dead letters are sent again; None: rows are messages to write.
    redrive: Target | None = None

    @classmethod
    def parse(
        cls, given: Mapping[str, str], environ: Mapping[str, str] = os.environ
    ) -> WriteOptions:
        """Without a write id of the user's, with a new one. Raises OptionError; for an unknown
        option with the nearest name."""
        given = {
            name: value for name, value in of_table(given).items() if name.lower() not in SPARKS_OWN
        }
        if not given:
            raise OptionError(
                "there are no options: Spark does not pass those of CREATE TABLE on; use CREATE "
                "TEMPORARY VIEW v USING rocketmq OPTIONS (…), then INSERT INTO v",
                "topic",
            )
        _check_of_write(given)
        values = with_name_server(named(given, _NAMES), environ)
        fields = {"write_id": str(uuid.uuid4())} | fields_of(values, OPTIONS)
        if "redrive" in values and "topic" in values:
            raise OptionError(
                "redrive says where dead letters go: drop the option topic, or write redrive as "
                "topic:NAME",
                "topic",
            )
        return cls(**fields)


def _check_of_write(given: Mapping[str, str]) -> None:
    """Raises OptionError for an option that only a read has."""
    of_read = {name.lower(): name for name in (*READ_OPTIONS, *READ_ALIASES)}
    for key in given:
        name = of_read.get(key.lower())
        if name is not None and key.lower() not in _NAMES:
            raise OptionError(
                f"the option {name} is of spark.read: a write takes its rows from the frame; drop "
                "it",
                name,
            )


def _topic(value: str) -> str:
    topics.check_topic(value)
    if value in topics.SEND_REFUSED_TOPICS:
        raise ValueError("it is a topic of the system: clients do not send to it")
    if topics.is_retry(value):
        raise ValueError("the topic belongs to a consumer group: redrive to it, or name another")
    return value


# name → (field of WriteOptions, parser)
OPTIONS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "nameServer": ("name_server", text),
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
