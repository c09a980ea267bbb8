"""Test options of the data source: names, aliases, values, rejections."""

from __future__ import annotations

import pickle

import pytest

from aerobee_spark.errors import OptionError
from aerobee_spark.reading.offsets import EARLIEST, LATEST, Position, Queue, check_known
from aerobee_spark.reading.options import ALIASES, OPTIONS, ReadOptions
from aerobee_spark.reading.redaction import Redaction
from support.codes import raises_about

TOPIC = {"nameServer": "h:9876", "topic": "flights"}
ONE_TIME = '{"t": {"a": {"0": 5}}}'
A0, A1 = Queue("t", "a", 0), Queue("t", "a", 1)


def parse(**options: str) -> ReadOptions:
    return ReadOptions.parse(TOPIC | options)


def test_the_defaults_read_a_topic_from_end_to_end() -> None:
    options = parse()
    assert options.topics == ("flights",)
    assert (options.starting, options.ending) == (Position(EARLIEST), Position(LATEST))
    assert options.fail_on_data_loss and options.include_body and options.include_properties
    assert (options.max_records_per_partition, options.pull_batch_size) == (100_000, 16_384)


def test_single_queues_start_at_times_and_all_others_at_their_ends() -> None:
    options = parse(startingOffsetsByTimestamp=ONE_TIME, endingOffsetsByTimestamp=ONE_TIME)
    assert (options.starting.ms_of(A0), options.ending.ms_of(A0)) == (5, 5)
    assert (options.starting.ms_of(A1), options.starting.of(A1)) == (None, EARLIEST)
    assert (options.ending.ms_of(A1), options.ending.of(A1)) == (None, LATEST)
    with raises_about(OptionError, "startingOffsetsByTimestamp"):
        check_known(options.starting, [A1], "startingOffsets")


def test_names_may_come_in_lower_case_as_spark_gives_them() -> None:
    options = ReadOptions.parse(
        {
            "nameserver": "h:1",
            "topic": "t",
            "maxrecordsperpartition": "7",
            "faIlondataloss": "False",
        }
    )
    assert (options.max_records_per_partition, options.fail_on_data_loss) == (7, False)


def test_every_alias_means_an_option_that_exists() -> None:
    assert set(ALIASES.values()) <= set(OPTIONS)
    options = ReadOptions.parse(
        {"namesrvAddr": "h:1", "group": "arrivals", "kind": "both", "tags": "UA || AA"}
    )
    assert options.name_server == "h:1"
    assert (options.consumer_group, options.kinds) == ("arrivals", ("dlq", "retry"))
    assert options.tags == {"UA", "AA"}
    assert ReadOptions.parse({"nameServer": "h:1", "subscribe": "a, b"}).topics == ("a", "b")
    assert (
        ReadOptions.parse({"nameServer": "h:1", "subscribePattern": "f.*"}).topic_pattern == "f.*"
    )


@pytest.mark.parametrize(
    ("unknown", "near"),
    [
        ("startingOffset", "startingOffsets"),
        ("nameservers", "nameServer"),
        ("maxOffsetsPerPartition", "maxRecordsPerPartition"),
        ("includeBodies", "includeBody"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(unknown: str, near: str) -> None:
    with pytest.raises(OptionError, match=f"did you mean {near}") as caught:
        parse(**{unknown: "1"})
    assert caught.value.about == unknown


@pytest.mark.parametrize(
    ("options", "about"),
    [
        (TOPIC | {"subscribe": "other"}, "topic"),
        ({"topic": "t"}, "nameServer"),
        ({"nameServer": " ", "topic": "t"}, "nameServer"),
        ({"nameServer": "h:1"}, "topic"),
        (TOPIC | {"consumerGroup": "g"}, "consumerGroup"),
        (TOPIC | {"kind": "dlq"}, "kind"),
        (TOPIC | {"startingOffsets": "earliest", "startingTimestamp": "1"}, "startingTimestamp"),
        (TOPIC | {"endingOffsets": "latest", "endingTimestamp": "1"}, "endingTimestamp"),
        (
            TOPIC | {"startingTimestamp": "1", "startingOffsetsByTimestamp": ONE_TIME},
            "startingOffsetsByTimestamp",
        ),
        (
            TOPIC | {"startingOffsetsByTimestamp": ONE_TIME, "endingTimestamp": "4"},
            "endingOffsetsByTimestamp",
        ),
        (TOPIC | {"includeHeaders": "true", "includeProperties": "false"}, "includeHeaders"),
        ({"nameServer": "h:1", "consumerGroup": "g", "kind": "dead"}, "kind"),
        (TOPIC | {"startingTimestamp": "2", "endingTimestamp": "1"}, "endingTimestamp"),
        (
            TOPIC
            | {
                "startingOffsets": '{"t": {"a": {"0": 5}}}',
                "endingOffsets": '{"t": {"a": {"0": 4}}}',
            },
            "endingOffsets",
        ),
    ],
)
def test_missing_or_contradictory_options_are_refused(options: dict[str, str], about: str) -> None:
    with raises_about(OptionError, about):
        ReadOptions.parse(options)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("maxRecordsPerPartition", "0"),
        ("pullBatchSize", "many"),
        ("pullBatchSize", "9999999999"),
        ("includeBody", "yes"),
        ("startingOffsets", "first"),
        ("startingOffsetsByTimestamp", "5"),
        ("startingOffsetsByTimestamp", '{"t": {"0": 5}}'),
        ("endingOffsetsByTimestamp", '{"t": {"a": {"0": -1}}}'),
        ("startingOffsets", "[1]"),
        ("startingOffsets", '{"t": {"a": {"x": 1}}}'),
        ("endingOffsets", '{"t": {"a": {"0": -3}}}'),
        ("endingOffsets", '{"t": {"a": {"0": "1"}}}'),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", str(1 << 63)),
        ("subExpression", "||"),
        ("topic", "a b"),
        ("topicPattern", "("),
        ("assign", '{"t": ["a"]}'),
        ("assign", "{}"),
        ("assign", '{"t": {"a": [true]}}'),
    ],
)
def test_a_bad_value_is_refused_with_its_option(name: str, value: str) -> None:
    given = {"nameServer": "h:1"} if name in ("topicPattern", "assign") else TOPIC
    with raises_about(OptionError, name):
        ReadOptions.parse({**given, name: value})


def test_a_misspelt_position_is_refused_with_what_there_is() -> None:
    with raises_about(OptionError, "startingOffsets") as raised:
        parse(startingOffsets="earlyest")
    assert "earliest" in raised.value.message


@pytest.mark.parametrize("ending", ["-1", "-2", "5"])
def test_an_end_that_is_not_before_the_start_is_taken(ending: str) -> None:
    """Brokers resolve the offsets -1 and -2 when they are asked."""
    named = f'{{"t": {{"a": {{"0": {ending}}}}}}}'
    parse(startingOffsets='{"t": {"a": {"0": 5}}}', endingOffsets=named)
    parse(startingTimestamp="1", endingTimestamp="1")


def test_offsets_name_queues_and_the_others_start_at_the_far_end() -> None:
    options = parse(
        startingOffsets='{"t": {"a": {"0": 23, "1": -2}}}', endingOffsets='{"t": {"a": {"0": 30}}}'
    )
    assert options.starting == Position(EARLIEST, {A0: 23, A1: EARLIEST})
    assert options.ending == Position(LATEST, {A0: 30})
    assert parse(startingOffsets="latest").starting == Position(LATEST)


def test_queues_can_be_assigned_one_by_one() -> None:
    options = ReadOptions.parse({"nameServer": "h:1", "assign": '{"t": {"a": [0, 1]}}'})
    assert options.assigned == {A0, A1}


@pytest.mark.parametrize(
    "value", ["1767225600000", "2026-01-01", "2026-01-01T00:00:00Z", "2026-01-01T02:00:00+02:00"]
)
def test_a_time_is_milliseconds_or_iso_8601_in_utc(value: str) -> None:
    assert parse(startingTimestamp=value).starting.timestamp_ms == 1_767_225_600_000
    assert parse(endingTimestamp=value).ending.timestamp_ms == 1_767_225_600_000


def test_the_name_server_may_come_from_the_environment() -> None:
    given = {"NAMESRV_ADDR": "env:1"}
    assert ReadOptions.parse({"topic": "t"}, given).name_server == "env:1"
    assert ReadOptions.parse(TOPIC, given).name_server == "h:9876"
    with raises_about(OptionError, "nameServer"):
        ReadOptions.parse({"topic": "t"}, {})


def test_a_path_is_the_topic() -> None:
    assert ReadOptions.parse({"nameServer": "h:1", "path": "orders"}).topics == ("orders",)


def test_the_properties_of_a_table_are_its_options() -> None:
    """Spark passes properties while it creates the table, and none when it reads the table."""
    options = {"option.nameserver": "h:1", "option.topic": "t", "owner": "me", "provider": "p"}
    assert ReadOptions.parse(options).topics == ("t",)
    with raises_about(OptionError, "topic"):
        ReadOptions.parse({})


def test_durations_and_limits_of_a_trigger() -> None:
    found = parse(minOffsetsPerTrigger="5", maxOffsetsPerTrigger="5", maxTriggerDelay="90s")
    assert (found.min_per_trigger, found.max_per_trigger) == (5, 5)
    assert (found.max_trigger_delay_ms, parse().max_trigger_delay_ms) == (90_000, 900_000)


def test_the_key_of_redaction_goes_with_the_options_and_into_no_text() -> None:
    environ = {"AEROBEE_REDACT_KEY": "that nobody may read"}
    options = ReadOptions.parse({"nameServer": "h:1", "topic": "t", "redact": "email"}, environ)
    elsewhere = pickle.loads(pickle.dumps(options))  # as it reaches a worker
    assert elsewhere.redact_key == b"that nobody may read"
    assert "nobody" not in repr(options)
    redaction = Redaction.of(elsewhere.redact, elsewhere.redact_key)
    assert "nobody" not in repr(redaction)
    assert redaction.hash("x") != Redaction.of(elsewhere.redact, b"").hash("x")


def test_a_redaction_that_keeps_every_name_is_refused() -> None:
    with raises_about(OptionError, "redact"):
        parse(redact="-KEYS")
