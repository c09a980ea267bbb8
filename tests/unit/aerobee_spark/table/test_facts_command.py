"""Test the arguments of `aerobee facts`."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_spark.__main__ import main
from aerobee_spark.errors import Code, MqError, ReportError
from aerobee_spark.landing.job import check_not_made_again
from aerobee_spark.landing.request import LandRequest
from aerobee_spark.reading.offsets import Bounds, Queue
from aerobee_spark.reading.options import ReadOptions
from aerobee_spark.table.commits import Span
from support.codes import raises_about


@pytest.mark.parametrize(
    "arguments",
    [
        ["--group", "g"],
        ["--table", "t"],
        ["--table", "t", "--group", "g", "--topic", "t"],
        ["--table", "t", "--group", "a b"],
        ["--table", "t", "--topic", ","],
        ["--table", "t", "--topic", "t", "--kind", "dlq"],
        ["--table", "t", "--topic", "t", "--every", "soon"],
        ["--table", "t", "--topic", "t", "--batch-size", "0"],
        ["--table", "t", "--topic", "t", "--keep", "90d"],
        ["shrink", "--table", "t"],
        ["compact", "--table", "t", "--group", "g"],
        ["compact", "--table", "t", "--every", "1m"],
        ["compact", "--table", "t", "--no-bodies"],
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    monkeypatch.chdir(tmp_path)
    try:
        code: object = main(["facts", *arguments])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert not list(tmp_path.iterdir())


def test_without_a_name_server_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    assert main(["facts", "--table", str(tmp_path / "t"), "--group", "g"]) == 2
    assert main(["facts", "compact", "--table", str(tmp_path / "t")]) == 1
    assert main(["facts", "--table", str(tmp_path / "t"), "--group", "g", "--namesrv", "h:1"]) == 1
    assert not list(tmp_path.iterdir())


def test_a_queue_that_was_made_again_needs_a_new_table() -> None:
    """Its new messages would have the keys of messages that the table already has."""
    queue, away = Queue("%DLQ%g", "a", 0), Queue("%DLQ%g", "b", 0)
    landed = [Span(queue, 0, 29, 0, 1), Span(away, 0, 29, 0, 1)]
    down = MqError(Code.BROKER_NOT_EXIST, "it is down")
    check_not_made_again({queue: Bounds(3, 29), away: down}, landed)
    check_not_made_again({queue: Bounds(0, 40)}, landed)
    with raises_about(ReportError, str(queue)):
        check_not_made_again({queue: Bounds(0, 20), away: down}, landed)


def test_the_options_of_a_job_are_those_of_the_stream() -> None:
    group = LandRequest("h:1", Path("t"), consumer_group="g", include_bodies=False)
    options = ReadOptions.parse(group.stream_options())
    options.check_stream()
    assert (options.consumer_group, options.kinds) == ("g", ("dlq", "retry"))
    assert not options.include_body and not options.fail_on_data_loss
    topics = ReadOptions.parse(LandRequest("h:1", Path("t"), topics=("a", "b")).options())
    assert topics.topics == ("a", "b")
