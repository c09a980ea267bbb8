"""Define the Spark schema of a message.

The types are built as objects: parsing a schema text needs a running Spark, which planner processes
do not have.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import (
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


def check(wanted: StructType) -> None:
    """Raise OptionError if the user's schema has an unknown column or a wrong type.

    A user sets a schema with `.schema(…)` to select some of the columns of a message.
    """
    for field in wanted.fields:
        if field.name not in SCHEMA.names:
            raise OptionError(
                f"the column {field.name} does not exist: choose from {', '.join(SCHEMA.names)}",
                field.name,
            )
        if field.dataType != SCHEMA[field.name].dataType:
            raise OptionError(
                f"the column {field.name} is {SCHEMA[field.name].dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}: cast it after reading",
                field.name,
            )
