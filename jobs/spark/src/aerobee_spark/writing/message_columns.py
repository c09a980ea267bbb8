"""The columns that a frame may have when it is written, by name and kind, and which of them a frame
has. Pure: the kinds are Spark's names of types.

A frame that was read can be written as it is: columns that say what the broker did with a message
are left out.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aerobee_spark.errors import OptionError
from aerobee_spark.reading.message_columns import COLUMNS as READ_COLUMNS

# name → the types that it may have
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "flag": ("int",),
    "messageGroup": ("string",),
    "deliverAt": ("timestamp",),
    "delaySeconds": ("int", "bigint", "double"),
    "brokerName": ("string",),
    "queueId": ("int",),
    # Of a read: its bits that say how a body is compressed are kept.
    "sysFlag": ("int",),
}
# Of a read; not written. A row with a queue offset is one of a read.
LEFT_OUT = tuple(name for name in READ_COLUMNS if name not in COLUMNS)
ROW_OF_A_READ = "queueOffset"
# What a redrive needs of a read, and what says of a message how it is written otherwise.
OF_A_REDRIVE = ("topic", "body", "properties", "flag", "sysFlag", "offsetMsgId")
_NOT_OF_A_REDRIVE = ("messageGroup", "deliverAt", "delaySeconds")


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """`names`: of the columns of a frame, by position, as they are spelled here. `spelled`: as the
    frame spells them. `kinds`: their types."""

    names: tuple[str, ...]
    spelled: tuple[str, ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, columns: Sequence[tuple[str, str]]) -> FrameColumns:
        """`columns`: name and type of each. Names match in any case: see `check_case`. Raises
        OptionError for an unknown column, one of another type, and what does not go together."""
        known = {name.lower(): name for name in (*COLUMNS, *LEFT_OUT)}
        names: list[str] = []
        for spelled, kind in columns:
            name = known.get(spelled.lower())
            if name is None:
                near = difflib.get_close_matches(spelled.lower(), known, n=1, cutoff=0.0)[0]
                raise OptionError(
                    f"there is no column {spelled} to write: did you mean {known[near]}? What "
                    "belongs to the message is the body, or an entry of properties",
                    spelled,
                )
            if name in names:
                raise OptionError(f"the column {name} is there twice: keep one", spelled)
            _check_type(name, kind)
            names.append(name)
        found = cls(tuple(names), *zip(*columns, strict=True))  # spelled, kinds
        found._check_together()
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def check_case(self) -> None:
        """Where `spark.sql.caseSensitive` is on. Raises OptionError for a column that is spelled in
        another case."""
        for name, spelled in zip(self.names, self.spelled, strict=True):
            if name != spelled:
                raise OptionError(
                    f"there is no column {spelled} to write: did you mean {name}? "
                    "(spark.sql.caseSensitive is on)",
                    spelled,
                )

    def check_topic(self, topic: str) -> None:
        """Raises OptionError when neither the option nor a column says where messages go."""
        if not topic and "topic" not in self:
            raise OptionError(
                "nothing says where the messages go: set the option topic, or give the frame a "
                "column topic",
                "topic",
            )

    def check_redrive(self) -> None:
        """Raises OptionError when the rows cannot be dead letters as they were read."""
        kinds = dict(zip(self.names, self.kinds, strict=True))
        for name in OF_A_REDRIVE:
            if kinds.get(name) != READ_COLUMNS[name]:
                raise OptionError(
                    "redrive sends dead letters again, as spark.read gave them with the option "
                    f"consumerGroup: the frame needs the column {name} ({READ_COLUMNS[name]})",
                    name,
                )
        for name in _NOT_OF_A_REDRIVE:
            if name in self:
                raise OptionError(
                    f"a redrive sends what was dead-lettered: drop the column {name}, or write "
                    "without redrive",
                    name,
                )

    def _check_together(self) -> None:
        if "body" not in self:
            raise OptionError(
                "the frame has no column body, which is what is sent: select one as body, for "
                "example to_json(struct(*)) AS body",
                "body",
            )
        if "deliverAt" in self and "delaySeconds" in self:
            raise OptionError(
                "deliverAt and delaySeconds both say when a message is delivered: drop one of the "
                "columns",
                "delaySeconds",
            )
        for one, other in (("brokerName", "queueId"), ("queueId", "brokerName")):
            if one in self and other not in self:
                raise OptionError(
                    f"the column {one} chooses a queue only together with {other}: add that, or "
                    f"drop {one}",
                    other,
                )


def _check_type(name: str, kind: str) -> None:
    wanted = COLUMNS.get(name, (kind,))
    if kind not in wanted:
        raise OptionError(
            f"the column {name} is {kind}, not {' or '.join(wanted)}: cast it before it is written",
            name,
        )
