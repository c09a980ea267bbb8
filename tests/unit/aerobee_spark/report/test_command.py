"""Test the command line: arguments, exit codes, the version of Java, and publishing."""

from __future__ import annotations

import io
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from aerobee_spark import __main__ as command
from aerobee_spark.errors import ReportError
from aerobee_spark.jvm import java, session
from aerobee_spark.report import job, publishing
from aerobee_spark.report.engines import choice
from aerobee_spark.report.engines.spark_engine import spark_path
from aerobee_spark.report.request import AUTO, DLQ, LOCAL, RETRY, SPARK, ReportRequest
from support.codes import raises_about

WRITTEN = {
    "group": "g",
    "complete": True,
    "problems": [],
    "rows": 5,
    "rows_expected": 5,
    "queues": [{}],
    "dead_letters": 5,
    "new_dead_letters": 2,
    "new_since": "2026-01-01T00:00:00.000Z",
    "dead_letters_by_state": {"open": 1},
    "dead_lettered_again": 0,
    "dead_lettered_after_redrive": 0,
    "dead_letters_by_tag": {"": 5},
    "dead_letters_by_reason": {},
    "oldest_dead_letter": None,
    "retries": None,
    "expires": None,
    "trend": None,
    "group_settings": None,
}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ReportRequest]:
    """Record the requests that the job gets. It answers with WRITTEN."""
    requests: list[ReportRequest] = []

    def run(request: ReportRequest, on_step: Any) -> dict[str, Any]:
        requests.append(request)
        on_step("at work")
        return dict(WRITTEN)

    monkeypatch.setattr(job, "run", run)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("aerobee_spark.jvm.session.keep_out_pandas", lambda: None)
    monkeypatch.setenv("NAMESRV_ADDR", "h:9876")
    return requests


def call(*arguments: str) -> int:
    return command.main(["report", "--group", "g", "--out", "r", *arguments])


def test_a_complete_report_exits_with_zero(
    asked: list[ReportRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call() == 0
    said = capsys.readouterr()
    assert said.out and "at work" in said.err
    assert asked == [ReportRequest("h:9876", "g", Path("r"), kinds=(DLQ, RETRY))]


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_any_terminal_gets_what_it_cannot_show_escaped(
    asked: list[ReportRequest],
    arguments: tuple[str, ...],
    encoding: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(WRITTEN, "dead_letters_by_tag", {"é\udc80": 5})
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", output)
    assert call(*arguments) == 0
    output.seek(0)
    shown = output.read()
    assert "\\udc80" in shown and ("\\xe9" if encoding == "ascii" else "é") in shown


def test_arguments_reach_the_job(asked: list[ReportRequest], tmp_path: Path) -> None:
    extra = tmp_path / "extra.json"
    extra.write_text('{"sent": 1}')
    call(
        *("--namesrv", "a:1", "--kind", "dlq", "--no-bodies", "--top", "3", "--bucket", "5m"),
        *("--since", "2026-01-01", "--until", "1767225600001", "--extra-json", str(extra)),
        *("--engine", "local", "--local-up-to", "0", "--redact", "card,name"),
    )
    assert asked == [
        ReportRequest(
            "a:1",
            "g",
            Path("r"),
            kinds=(DLQ,),
            include_bodies=False,
            top=3,
            since_ms=1_767_225_600_000,
            until_ms=1_767_225_600_001,
            bucket_ms=300_000,
            extra={"sent": 1},
            engine="local",
            local_up_to=0,
            redact=("card", "name"),
        )
    ]


def test_an_age_counts_from_the_earliest_clock_of_the_brokers(
    asked: list[ReportRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Admin(nullcontext["Admin"]):
        def __init__(self, namesrv: str) -> None:
            super().__init__(self)

        def broker_times_ms(self) -> dict[str, int]:
            return {"a": 10_000_000, "b": 9_000_000}

    monkeypatch.setattr("aerobee_client.AdminClient", Admin)
    call("--since", "2h", "--until", "1h")
    assert (asked[0].since_ms, asked[0].until_ms) == (9_000_000 - 7_200_000, 9_000_000 - 3_600_000)


def test_json_is_the_summary_and_quiet_is_silent(
    asked: list[ReportRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--json", "--quiet") == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == WRITTEN
    assert said.err == ""


def test_an_incomplete_report_exits_with_three(
    asked: list[ReportRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(WRITTEN, "complete", False)
    monkeypatch.setitem(WRITTEN, "problems", ["broker-b is down"])
    assert call("--fail-if-new", "1") == 3


@pytest.mark.parametrize(("limit", "code"), [("1", 4), ("2", 4), ("3", 0)])
def test_more_new_dead_letters_than_allowed_exit_with_four(
    asked: list[ReportRequest], limit: str, code: int
) -> None:
    assert call("--fail-if-new", limit) == code


def test_a_failure_is_one_line_and_exits_with_one(
    asked: list[ReportRequest], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(request: ReportRequest, on_step: Any) -> None:
        raise ReportError("Spark failed: it rained")

    monkeypatch.setattr(job, "run", fail)
    assert call() == 1
    assert capsys.readouterr().err == "error: Spark failed: it rained\n"


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (OSError(28, "No space left on device"), "error: No space left on device\n"),
        (PermissionError(13, "Permission denied", "r"), "error: r: Permission denied\n"),
        (OSError("Parquet: the disk is full"), "error: Parquet: the disk is full\n"),
    ],
)
def test_an_error_of_the_system_is_one_line_and_exits_with_one(
    asked: list[ReportRequest],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: OSError,
    reported: str,
) -> None:
    def fail(request: ReportRequest, on_step: Any) -> None:
        raise error

    monkeypatch.setattr(job, "run", fail)
    assert call() == 1
    assert capsys.readouterr().err == reported


@pytest.mark.parametrize(
    "arguments",
    [
        ("--top", "0"),
        ("--bucket", "soon"),
        ("--since", "yesterday"),
        ("--kind", "dead"),
        ("--engine", "steam"),
        ("--local-up-to", "-1"),
        ("--group", "a b"),
        ("--extra-json", "nowhere.json"),
        ("--out", ""),
    ],
)
def test_wrong_arguments_exit_with_two_and_are_named(
    asked: list[ReportRequest], arguments: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(*arguments)
    assert ended.value.code == 2
    assert arguments[0] in capsys.readouterr().err.splitlines()[-1]
    assert asked == []


def test_a_missing_name_server_or_bad_extra_exits_with_two(
    asked: list[ReportRequest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "extra.json").write_text("[1]")
    with pytest.raises(SystemExit) as ended:
        call("--extra-json", str(tmp_path / "extra.json"))
    assert ended.value.code == 2
    (tmp_path / "extra.json").write_text('{"sent": NaN, "more": 1e400}')  # of no JSON
    with pytest.raises(SystemExit) as ended:
        call("--extra-json", str(tmp_path / "extra.json"))
    assert ended.value.code == 2
    with pytest.raises(SystemExit) as ended:
        call("--since", "1h", "--until", "2h")
    assert ended.value.code == 2
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(SystemExit) as ended:
        call()
    assert ended.value.code == 2


# ---- publishing ----


def finished(folder: Path, word: str) -> Path:
    """Write a report with `word` in every file."""
    for name in publishing.PARTS:
        if "." in name:
            (folder / name).write_text(word)
        else:
            (folder / name).mkdir()
            (folder / name / f"{word}.{'csv' if name == 'csv' else 'parquet'}").write_text(word)
    return folder


def test_a_new_report_replaces_the_earlier_one_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for word in ("first", "second"):
        publishing.check_target(out)
        with publishing.scratch_folder(out) as folder:
            publishing.publish(finished(folder, word), out)
    assert sorted(path.name for path in out.iterdir()) == sorted(publishing.PARTS)
    assert [path.name for path in (out / "facts").iterdir()] == ["second.parquet"]
    assert (out / "summary.json").read_text() == "second"


def test_a_report_that_fails_leaves_the_earlier_one(tmp_path: Path) -> None:
    with publishing.scratch_folder(tmp_path) as folder:
        publishing.publish(finished(folder, "first"), tmp_path)

    def fail() -> None:
        with publishing.scratch_folder(tmp_path) as folder:
            finished(folder, "second")
            raise RuntimeError("out of luck")

    with pytest.raises(RuntimeError):
        fail()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(publishing.PARTS)
    assert (tmp_path / "summary.json").read_text() == "first"


@pytest.mark.parametrize("name", ["facts", "csv"])
def test_folders_that_no_report_wrote_are_not_touched(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "photo.jpg").write_text("")
    with raises_about(ReportError, str(tmp_path / name / "photo.jpg")):
        publishing.check_target(tmp_path)


def test_a_target_that_cannot_be_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with raises_about(ReportError, str(tmp_path / "file")):
        publishing.check_target(tmp_path / "file")
    (tmp_path / "facts").write_text("")
    with raises_about(ReportError, str(tmp_path / "facts")):
        publishing.check_target(tmp_path)


# ---- test choice ----
#
# Test reports under spark-submit: engine, Java, and paths that workers share.


@pytest.fixture
def spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(session.GATEWAY_PORT, "1")


def no_java() -> java.Java:
    raise ReportError("there is no Java", "PATH")


@pytest.mark.usefixtures("spark_submit")
def test_who_submits_gets_spark_for_any_number_of_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "require_java", no_java)  # the JVM runs already
    for messages in (0, 10**9):
        assert choice.choose(AUTO, messages, local_up_to=100) == choice.Choice(SPARK)
    assert choice.choose(LOCAL, 10**9, local_up_to=100) == choice.Choice(LOCAL)


@pytest.mark.usefixtures("spark_submit")
def test_the_folder_itself_is_written_and_has_to_have_a_plain_path(tmp_path: Path) -> None:
    with spark_path(tmp_path) as path:
        assert path == tmp_path.resolve()
    comma = tmp_path / "a,b"
    comma.mkdir()
    with raises_about(ReportError, str(comma)), spark_path(comma):
        pass


def test_else_a_link_stands_for_any_folder(tmp_path: Path) -> None:
    comma = tmp_path / "a,b"
    comma.mkdir()
    with spark_path(comma) as path:
        assert path.resolve() == comma.resolve() and "," not in str(path)
