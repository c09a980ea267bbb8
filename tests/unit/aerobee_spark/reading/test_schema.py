"""Test schemas of users, which select columns of a message."""

from __future__ import annotations

import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from aerobee_spark.errors import OptionError
from aerobee_spark.reading import schema
from support.codes import raises_about


def test_a_schema_may_choose_columns() -> None:
    schema.check(StructType([StructField("queueOffset", LongType())]))


@pytest.mark.parametrize(
    "field",
    [
        StructField("offset", LongType()),
        StructField("queueOffset", IntegerType()),
        StructField("body", StringType()),
    ],
)
def test_a_schema_may_not_invent_or_convert_columns(field: StructField) -> None:
    with raises_about(OptionError, field.name):
        schema.check(StructType([StructField("tags", StringType()), field]))


def test_headers_are_a_column_only_if_they_are_requested() -> None:
    wanted = StructType([schema.of(include_headers=True)["headers"]])
    schema.check(wanted, include_headers=True)
    with raises_about(OptionError, "headers"):
        schema.check(wanted)
    assert "headers" not in schema.of(include_headers=False).names
