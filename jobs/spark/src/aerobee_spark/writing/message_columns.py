"""List the columns that a DataFrame to write may have, and find them in a DataFrame.

Kinds are Spark's names of types. A DataFrame that was read can be written unchanged, because the
columns that brokers set are ignored. This module does no I/O.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aerobee_spark.errors import OptionError
from aerobee_spark.reading.message_columns import COLUMNS as READ_COLUMNS
from aerobee_spark.reading.message_columns import HEADERS

# column → the types that it may have
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
    # Only the bits that describe the compression of the body are sent.
    "sysFlag": ("int",),
}
# Columns that a read returns but a write ignores. A row with a queue offset comes from a read.
LEFT_OUT = (*(name for name in READ_COLUMNS if name not in COLUMNS), HEADERS)
ROW_OF_A_READ = "queueOffset"
# Columns that rows of a facts table have besides those of a read. A write ignores them too.
OF_FACTS = (
    "kind",
    "consumerGroup",
    "originTopic",
    "originMsgId",
    "reason",
    "reasonDescription",
    "producerHost",
)
# Columns that a redrive needs, and columns that it excludes.
OF_A_REDRIVE = ("topic", "body", "properties", "flag", "sysFlag", "offsetMsgId")
_NOT_OF_A_REDRIVE = ("messageGroup", "deliverAt", "delaySeconds")


@dataclass(frozen=True, slots=True)
class FrameColumns:
    """The columns of a DataFrame, in their order.

    `names` are the canonical names, `spelled` are the names in the DataFrame, and `kinds` are the
    types.
    """

    names: tuple[str, ...]
    spelled: tuple[str, ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, columns: Sequence[tuple[str, str]]) -> FrameColumns:
        """Find the columns of a DataFrame. Names match in any letter case (see `check_case`).

        Args:
            columns: name and type of each column.

        Raises:
            OptionError: a column is unknown, has another type, or excludes another column.
        """
        known = {name.lower(): name for name in (*COLUMNS, *LEFT_OUT)}
        if any(spelled.lower() == ROW_OF_A_READ.lower() for spelled, _ in columns):
            known |= {name.lower(): name for name in OF_FACTS}
        names: list[str] = []
        for spelled, kind in columns:
            name = known.get(spelled.lower())
            if name is None:
                near = difflib.get_close_matches(spelled.lower(), known, n=1, cutoff=0.0)[0]
                raise OptionError(
                    f"the column {spelled} cannot be written: did you mean {known[near]}? "
                    "Put other data into the body or into properties",
                    spelled,
                )
            if name in names:
                raise OptionError(f"the frame has the column {name} twice: keep one", spelled)
            _check_type(name, kind)
            names.append(name)
        found = cls(tuple(names), *zip(*columns, strict=True))  # spelled, kinds
        found._check_together()
        return found

    def __contains__(self, name: str) -> bool:
        return name in self.names

    def check_case(self) -> None:
        """Raise OptionError if a column is spelled in another letter case.

        Call this if `spark.sql.caseSensitive` is on.
        """
        for name, spelled in zip(self.names, self.spelled, strict=True):
            if name != spelled:
                raise OptionError(
                    f"the column {spelled} cannot be written: did you mean {name}? "
                    "(spark.sql.caseSensitive is on)",
                    spelled,
                )

    def check_topic(self, topic: str) -> None:
        """Raise OptionError if neither the option topic nor a column names the topic."""
        if not topic and "topic" not in self:
            raise OptionError(
                "the topic is missing: set the option topic, or add a column topic",
                "topic",
            )

    def check_redrive(self) -> None:
        """Raise OptionError if the columns do not fit a redrive of dead letters.

        A redrive needs some columns of a read, and excludes columns that set a destination or time.
        """
        kinds = dict(zip(self.names, self.kinds, strict=True))
        for name in OF_A_REDRIVE:
            if kinds.get(name) != READ_COLUMNS[name]:
                raise OptionError(
                    "redrive needs dead letters as spark.read returns them with the option "
                    f"consumerGroup: add the column {name} ({READ_COLUMNS[name]})",
                    name,
                )
        for name in _NOT_OF_A_REDRIVE:
            if name in self:
                raise OptionError(
                    f"a redrive sends dead letters unchanged: remove the column {name}, or "
                    "the option redrive",
                    name,
                )

    def _check_together(self) -> None:
        if "body" not in self:
            raise OptionError(
                "the frame has no column body: select one, for example to_json(struct(*)) AS body",
                "body",
            )
        if "deliverAt" in self and "delaySeconds" in self:
            raise OptionError(
                "deliverAt and delaySeconds both set the time of delivery: remove one of the "
                "columns",
                "delaySeconds",
            )
        for one, other in (("brokerName", "queueId"), ("queueId", "brokerName")):
            if one in self and other not in self:
                raise OptionError(
                    f"the column {one} selects a queue only together with {other}: add {other}, or "
                    f"remove {one}",
                    other,
                )


def _check_type(name: str, kind: str) -> None:
    wanted = COLUMNS.get(name, (kind,))
    if kind not in wanted:
        raise OptionError(
            f"the column {name} has the type {kind}, not {' or '.join(wanted)}: cast it first",
            name,
        )
