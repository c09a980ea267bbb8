"""Test options and columns of the sink: names, defaults, rejections."""

from __future__ import annotations

import pytest

from aerobee_spark.errors import OptionError
from aerobee_spark.options import WRITE_ONLY
from aerobee_spark.reading.message_columns import COLUMNS as READ_COLUMNS
from aerobee_spark.reading.options import OPTIONS as READ_OPTIONS
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.writing.message_columns import COLUMNS, FrameColumns
from aerobee_spark.writing.options import OPTIONS, WriteOptions
from support.codes import raises_about

TO_ORDERS = {"nameServer": "h:9876", "topic": "orders"}
BODY = ("body", "binary")


def parse(**options: str) -> WriteOptions:
    return WriteOptions.parse(TO_ORDERS | options, {})


def test_defaults() -> None:
    options = parse()
    assert (options.topic, options.create_topic, options.max_per_second) == ("orders", False, None)
    assert (options.max_message_size, options.send_timeout_ms) == (4_194_304, 30_000)


def test_options_of_a_write_are_those_that_are_distinguished() -> None:
    assert set(OPTIONS) - set(READ_OPTIONS) == set(WRITE_ONLY)


def test_a_redrive_says_itself_where_messages_go() -> None:
    given = {"nameServer": "h:9876", "redrive": "topic:again"}
    assert str(WriteOptions.parse(given, {}).redrive) == "topic:again"
    with raises_about(OptionError, "topic"):
        parse(redrive="origin")


def test_each_write_has_an_id_of_its_own_unless_one_is_given() -> None:
    assert parse().write_id != parse().write_id
    assert parse(writeId="batch 7").write_id == "batch 7"


def test_names_come_in_any_case_and_as_aliases() -> None:
    options = WriteOptions.parse({"namesrvaddr": "h:1", "path": "t", "createtopic": "TRUE"}, {})
    assert (options.name_server, options.topic, options.create_topic) == ("h:1", "t", True)


def test_the_name_server_comes_from_the_environment() -> None:
    environ = {"NAMESRV_ADDR": "env:9876"}
    assert WriteOptions.parse({"topic": "t"}, environ).name_server == "env:9876"
    assert WriteOptions.parse({"topic": "t", "nameServer": "h:1"}, environ).name_server == "h:1"
    with raises_about(OptionError, "nameServer"):
        WriteOptions.parse({"topic": "t"}, {})


def test_what_spark_adds_to_a_streams_options_is_no_mistake() -> None:
    assert parse(checkpointlocation="/tmp/x", queryname="q").topic == "orders"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxMessagesPerSecond", "0"),
        ("maxMessagesPerSecond", "-1"),
        ("maxMessagesPerSecond", "1.5"),
        ("maxMessageSize", "0"),
        ("sendTimeoutMs", "0"),
        ("createTopic", "yes"),
        ("topic", "a b"),
        ("topic", "RMQ_SYS_TRANS_HALF_TOPIC"),
        ("topic", "%RETRY%billing"),
        ("writeId", ""),
        ("redrive", "back"),
        ("redrive", "topic:%RETRY%billing"),
    ],
)
def test_bad_values_are_refused_by_name(name: str, value: str) -> None:
    with raises_about(OptionError, name):
        parse(**{name: value})


@pytest.mark.parametrize(
    "name", ["startingOffsets", "endingTimestamp", "consumerGroup", "subscribe", "pushdown"]
)
def test_options_of_a_read_are_refused(name: str) -> None:
    with raises_about(OptionError, name):
        parse(**{name.lower(): "earliest"})


@pytest.mark.parametrize("name", WRITE_ONLY)
def test_options_of_a_write_are_refused_by_a_read(name: str) -> None:
    with raises_about(OptionError, name):
        ReadOptions.parse(TO_ORDERS | {name.lower(): "1"})


def test_an_unknown_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean maxMessagesPerSecond"):
        parse(maxMessagePerSecond="1")


def test_no_options_at_all_are_those_of_create_table() -> None:
    with pytest.raises(OptionError, match="CREATE TEMPORARY VIEW"):
        WriteOptions.parse({}, {"NAMESRV_ADDR": "h:1"})


# ---- columns ----


def test_a_frame_that_was_read_can_be_written() -> None:
    kinds = [(name, kind) for name, kind in READ_COLUMNS.items()]
    assert FrameColumns.of(kinds).names == tuple(READ_COLUMNS)


@pytest.mark.parametrize(
    "columns", [[(name, kind)] for name, kinds in COLUMNS.items() for kind in kinds]
)
def test_each_column_has_its_types(columns: list[tuple[str, str]]) -> None:
    others = [BODY, ("brokerName", "string"), ("queueId", "int")]
    FrameColumns.of(columns + [each for each in others if each[0] != columns[0][0]])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("body", "int"),
        ("keys", "array<int>"),
        ("properties", "map<string,int>"),
        ("flag", "bigint"),
        ("deliverAt", "timestamp_ntz"),
        ("delaySeconds", "string"),
        ("tags", "void"),
        ("queueId", "bigint"),
    ],
)
def test_a_column_of_another_type_is_refused(name: str, kind: str) -> None:
    with raises_about(OptionError, name):
        FrameColumns.of([BODY, (name, kind)] if name != "body" else [(name, kind)])


def test_an_unknown_column_is_refused_with_the_nearest() -> None:
    with pytest.raises(OptionError, match="did you mean messageGroup"):
        FrameColumns.of([BODY, ("messageGrp", "string")])


@pytest.mark.parametrize(
    ("columns", "about"),
    [
        ([("tags", "string")], "body"),
        ([BODY, ("deliverAt", "timestamp"), ("delaySeconds", "int")], "delaySeconds"),
        ([BODY, ("brokerName", "string")], "queueId"),
        ([BODY, ("queueId", "int")], "brokerName"),
        ([BODY, ("Body", "binary")], "Body"),
    ],
)
def test_columns_that_do_not_go_together_are_refused(
    columns: list[tuple[str, str]], about: str
) -> None:
    with raises_about(OptionError, about):
        FrameColumns.of(columns)


def test_the_case_of_names_counts_where_spark_says_so() -> None:
    found = FrameColumns.of([("BODY", "binary"), ("Tags", "string")])
    assert found.names == ("body", "tags")
    with raises_about(OptionError, "BODY"):
        found.check_case()
    FrameColumns.of([BODY]).check_case()


def test_without_a_topic_there_is_nowhere_to_write() -> None:
    with raises_about(OptionError, "topic"):
        FrameColumns.of([BODY]).check_topic("")
    FrameColumns.of([BODY]).check_topic("orders")
    FrameColumns.of([BODY, ("topic", "string")]).check_topic("")
