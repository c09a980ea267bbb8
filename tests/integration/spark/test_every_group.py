"""`report --all-groups`: a page above the reports of every group."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aerobee_spark import __main__ as command
from aerobee_spark.errors import ReportError
from aerobee_spark.report import every_group, job
from aerobee_spark.report.request import LOCAL, ReportRequest
from aerobee_wire import topics
from support.client.fake_broker import FakeCluster
from support.codes import raises_about

# Also a name that means something in a link.
GROUPS = {"billing": 3, "mail%25|x": 1, "quiet": 0}


@pytest.fixture
def filled(cluster: FakeCluster) -> FakeCluster:
    broker = cluster["broker-a"]
    for group, dead in GROUPS.items():
        broker.groups.add(group)
        for number in range(dead):
            broker.put(topics.dead_letter_topic(group), b"{}", named={"KEYS": f"k{number}"})
    broker.put(topics.retry_topic("gone"), b"{}")  # of a group that was deleted
    return cluster


def run(cluster: FakeCluster, out: Path, *arguments: str) -> int:
    return command.main(
        ["report", "--all-groups", "--namesrv", cluster.namesrv, "--out", str(out), *arguments]
    )


@pytest.fixture(autouse=True)
def keep_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("aerobee_spark.jvm.session.keep_out_pandas", lambda: None)


def test_every_group_has_a_line_and_a_report(
    filled: FakeCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(filled, tmp_path, "--quiet") == 0
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    found = [(each["group"], each["dead_letters"], each["retries"]) for each in summary["groups"]]
    assert found == [("billing", 3, 0), ("mail%25|x", 1, 0), ("gone", 0, 1)]
    assert (summary["dead_letters"], summary["new_dead_letters"]) == (4, 4)
    assert (summary["complete"], summary["groups_without_topics"]) == (True, ["quiet"])
    assert "3 groups" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text("utf-8")
    assert 'href="groups/mail%2525%7Cx/report.html"' in page and "<script" not in page
    for each in summary["groups"]:
        own = json.loads((tmp_path / "groups" / each["group"] / "summary.json").read_text("utf-8"))
        assert own["group"] == each["group"] and (tmp_path / each["page"]).is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "groups",
        "report.html",
        "summary.json",
    ]


def test_what_is_new_is_counted_over_all_groups(filled: FakeCluster, tmp_path: Path) -> None:
    assert run(filled, tmp_path, "--quiet", "--json") == 0
    filled["broker-a"].put(topics.dead_letter_topic("billing"), b"{}")
    filled["broker-a"].put(topics.dead_letter_topic("quiet"), b"{}")
    assert run(filled, tmp_path, "--quiet", "--json", "--fail-if-new", "2") == 4
    assert run(filled, tmp_path, "--quiet", "--json", "--fail-if-new", "1") == 0


def test_a_group_whose_report_fails_makes_the_whole_incomplete(
    filled: FakeCluster, tmp_path: Path
) -> None:
    record = filled["broker-a"].queue(topics.dead_letter_topic("billing")).records
    record[0] = b"\0\0\0\x10" + bytes(12)
    assert run(filled, tmp_path, "--quiet", "--json") == 3
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    (failed,) = [each for each in summary["groups"] if not each["complete"]]
    assert (failed["group"], failed["dead_letters"], failed["page"]) == ("billing", None, None)
    assert "cannot decode" in failed["problems"][0]
    assert summary["dead_letters"] is None
    assert "Not complete" in (tmp_path / "report.html").read_text("utf-8")


def test_a_body_with_half_a_character_is_reported(filled: FakeCluster, tmp_path: Path) -> None:
    filled["broker-a"].put(topics.dead_letter_topic("billing"), rb'{"name": "\ud83d"}')
    assert run(filled, tmp_path, "--quiet") == 0
    folder = tmp_path / "groups" / "billing"
    bodies = [each["body"] for each in json.loads((folder / "summary.json").read_text())["samples"]]
    shown = '{\n  "name": "\\ud83d"\n}'
    assert shown in bodies
    assert "\\ud83d" in (folder / "report.html").read_text("utf-8")
    assert "\\ud83d" in (folder / "csv" / "samples.csv").read_text("utf-8")


def test_a_defect_in_the_report_of_a_group_does_not_stop_the_others(
    filled: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = job.run

    def run_or_fail(request: ReportRequest, on_step: job.ProgressSink) -> dict[str, Any]:
        if request.consumer_group == "billing":
            raise ZeroDivisionError("half a character: \ud83d")
        return make(request, on_step)

    monkeypatch.setattr(job, "run", run_or_fail)
    assert run(filled, tmp_path, "--quiet") == 3
    summary = json.loads((tmp_path / "summary.json").read_text("utf-8"))
    found = {each["group"]: each for each in summary["groups"]}
    assert (found["billing"]["complete"], found["billing"]["dead_letters"]) == (False, None)
    assert "ZeroDivisionError" in found["billing"]["problems"][0]
    assert [found[group]["complete"] for group in ("gone", "mail%25|x")] == [True, True]


def test_one_folder_holds_one_kind_of_report(filled: FakeCluster, tmp_path: Path) -> None:
    one, every = tmp_path / "one", tmp_path / "every"
    request = ReportRequest(filled.namesrv, "billing", one, engine=LOCAL)
    job.run(request, lambda step: None)
    with raises_about(ReportError, str(one / "facts")):
        every_group.run(ReportRequest(filled.namesrv, "", one, engine=LOCAL), lambda step: None)
    assert run(filled, every, "--quiet", "--json") == 0
    with raises_about(ReportError, str(every / "groups")):
        job.run(ReportRequest(filled.namesrv, "billing", every), lambda step: None)


@pytest.mark.parametrize(
    "arguments", [["--group", "g"], ["--extra-json", "figures.json"], ["--facts", "table"]]
)
def test_what_is_of_one_group_is_refused(arguments: list[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(
            ["report", "--all-groups", "--namesrv", "h:1", "--out", str(tmp_path), *arguments]
        )
    assert ended.value.code == 2
