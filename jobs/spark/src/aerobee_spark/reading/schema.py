"""Define the Spark schema of a message.

The types are built as objects: parsing a schema text needs a running Spark, which planner processes
do not have.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aerobee_spark.errors import OptionError
from aerobee_spark.reading import message_columns as columns

_TYPES: Mapping[str, DataType] = {
    columns.STRING: StringType(),
    columns.INT: IntegerType(),
    columns.LONG: LongType(),
    columns.BINARY: BinaryType(),
    columns.TIMESTAMP: TimestampType(),
    columns.STRING_MAP: MapType(StringType(), StringType()),
}
SCHEMA = StructType([StructField(name, _TYPES[kind]) for name, kind in columns.COLUMNS.items()])
_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_WITH_HEADERS = StructType([*SCHEMA.fields, StructField(columns.HEADERS, ArrayType(_HEADER))])


def of(*, include_headers: bool) -> StructType:
    """Return the schema of a read, with or without the column of includeHeaders."""
    return _WITH_HEADERS if include_headers else SCHEMA


def check(wanted: StructType, *, include_headers: bool = False) -> None:
    """Raise OptionError if the user's schema has an unknown column or a wrong type.

    A user sets a schema with `.schema(…)` to select some of the columns of a message.
    """
    known = of(include_headers=include_headers)
    for field in wanted.fields:
        if field.name not in known.names:
            raise OptionError(
                f"the column {field.name} does not exist: choose from {', '.join(known.names)}",
                field.name,
            )
        if field.dataType != known[field.name].dataType:
            raise OptionError(
                f"the column {field.name} is {known[field.name].dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}: cast it after reading",
                field.name,
            )
