"""Schemas of users, which select columns of a message."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from aerobee_spark.errors import OptionError
from aerobee_spark.reading import schema


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
