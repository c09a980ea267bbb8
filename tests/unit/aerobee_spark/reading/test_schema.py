"""The two schemas of a message, Spark's and Arrow's, and schemas of users."""

from __future__ import annotations

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from aerobee_spark.errors import OptionError
from aerobee_spark.reading import columns, schema


def test_arrow_columns_have_the_types_that_spark_expects() -> None:
    assert to_arrow_schema(schema.SCHEMA, timezone="UTC").equals(columns.ARROW_SCHEMA)


def test_a_schema_may_choose_columns() -> None:
    schema.check(StructType([StructField("queueOffset", LongType())]))


@pytest.mark.parametrize(
    ("field", "words"),
    [
        (StructField("offset", LongType()), "no column offset: there are topic, brokerName"),
        (StructField("queueOffset", IntegerType()), "is bigint, not int"),
        (StructField("body", StringType()), "is binary, not string"),
    ],
)
def test_a_schema_may_not_invent_or_convert_columns(field: StructField, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        schema.check(StructType([field]))
