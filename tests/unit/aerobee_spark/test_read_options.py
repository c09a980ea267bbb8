"""Options of the data source: names, aliases, values, refusals."""

from __future__ import annotations

import pytest

from aerobee_spark.errors import OptionError
from aerobee_spark.reading.offsets import EARLIEST, LATEST, Position, Queue
from aerobee_spark.reading.options import ALIASES, OPTIONS, ReadOptions

TOPIC = {"nameServer": "h:9876", "topic": "flights"}
A0, A1 = Queue("t", "a", 0), Queue("t", "a", 1)


def parse(**options: str) -> ReadOptions:
    return ReadOptions.parse(TOPIC | options)


def test_the_defaults_read_a_topic_from_end_to_end() -> None:
    options = parse()
    assert options.topics == ("flights",)
    assert (options.starting, options.ending) == (Position(EARLIEST), Position(LATEST))
    assert options.fail_on_data_loss and options.include_body and options.include_properties
    assert (options.max_records_per_partition, options.pull_batch_size) == (100_000, 4096)


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
    with pytest.raises(OptionError, match=f"no option {unknown}: did you mean {near}"):
        parse(**{unknown: "1"})


def test_an_option_and_its_alias_together_are_refused() -> None:
    with pytest.raises(OptionError, match="topic is given twice"):
        parse(subscribe="other")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "t"}, "nameServer is missing"),
        ({"nameServer": " ", "topic": "t"}, "nameServer is missing"),
        ({"nameServer": "h:1"}, "nothing says what to read"),
        (TOPIC | {"consumerGroup": "g"}, "exclude each other"),
        (TOPIC | {"kind": "dlq"}, "goes with consumerGroup"),
        (TOPIC | {"startingOffsets": "earliest", "startingTimestamp": "1"}, "exclude each other"),
        (TOPIC | {"endingOffsets": "latest", "endingTimestamp": "1"}, "exclude each other"),
    ],
)
def test_missing_or_contradictory_options_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        ReadOptions.parse(options)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("maxRecordsPerPartition", "0", "a number between 1"),
        ("pullBatchSize", "many", "a number between 1"),
        ("pullBatchSize", "9999999999", "a number between 1"),
        ("includeBody", "yes", "write true or false"),
        ("startingOffsets", "first", "it is no JSON"),
        ("startingOffsets", "[1]", "write earliest, latest or"),
        ("startingOffsets", '{"t": {"a": {"x": 1}}}', "write earliest, latest or"),
        ("endingOffsets", '{"t": {"a": {"0": -3}}}', "-3 is no queue offset"),
        ("endingOffsets", '{"t": {"a": {"0": "1"}}}', "is no queue offset"),
        ("startingTimestamp", "yesterday", "milliseconds since the epoch"),
        ("subExpression", "||", "names no tag"),
        ("topic", "a b", "is illegal"),
    ],
)
def test_a_bad_value_is_refused_with_its_option(name: str, value: str, words: str) -> None:
    with pytest.raises(OptionError, match=f"the option {name} is .*{words}"):
        parse(**{name: value})


def test_a_bad_pattern_kind_or_assignment_is_refused() -> None:
    server = {"nameServer": "h:1"}
    for options, words in (
        ({"topicPattern": "("}, "no regular expression"),
        ({"consumerGroup": "g", "kind": "dead"}, "choose one of dlq, retry, both"),
        ({"assign": '{"t": ["a"]}'}, 'write {"topic": {"broker"'),
        ({"assign": "{}"}, 'write {"topic": {"broker"'),
    ):
        with pytest.raises(OptionError, match=words.replace("{", r"\{")):
            ReadOptions.parse(server | options)


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
    "value",
    ["1767225600000", "2026-01-01", "2026-01-01T00:00:00Z", "2026-01-01T02:00:00+02:00"],
)
def test_a_time_is_milliseconds_or_iso_8601_in_utc(value: str) -> None:
    assert parse(startingTimestamp=value).starting.timestamp_ms == 1_767_225_600_000
    assert parse(endingTimestamp=value).ending.timestamp_ms == 1_767_225_600_000
