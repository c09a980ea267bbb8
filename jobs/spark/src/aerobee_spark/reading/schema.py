"""The Spark schema of a message.

The types are built, not parsed from text: parsing needs a running Spark, which planner processes do
not have.
"""

from __future__ import annotations

from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from aerobee_spark.errors import OptionError

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("brokerName", StringType()),
        StructField("queueId", IntegerType()),
        StructField("queueOffset", LongType()),
        # The property UNIQ_KEY, which the producer set; else offsetMsgId.
        StructField("msgId", StringType()),
        # Store host and physical offset, in hex.
        StructField("offsetMsgId", StringType()),
        StructField("tags", StringType()),
        # Several are separated by spaces.
        StructField("keys", StringType()),
        StructField("body", BinaryType()),
        # Bytes of the whole body, also when it is cut or left out.
        StructField("bodySize", IntegerType()),
        StructField("flag", IntegerType()),
        StructField("sysFlag", IntegerType()),
        StructField("bornTimestamp", TimestampType()),
        StructField("storeTimestamp", TimestampType()),
        # "ip:port"
        StructField("bornHost", StringType()),
        StructField("storeHost", StringType()),
        StructField("reconsumeTimes", IntegerType()),
        StructField("properties", MapType(StringType(), StringType())),
    ]
)


def check(wanted: StructType) -> None:
    """Raises OptionError when a schema given with `.schema(…)` is no selection of these columns."""
    for field in wanted.fields:
        if field.name not in SCHEMA.names:
            raise OptionError(
                f"there is no column {field.name}: there are {', '.join(SCHEMA.names)}", field.name
            )
        if field.dataType != SCHEMA[field.name].dataType:
            raise OptionError(
                f"the column {field.name} is {SCHEMA[field.name].dataType.simpleString()}, not "
                f"{field.dataType.simpleString()}: cast it after reading",
                field.name,
            )
