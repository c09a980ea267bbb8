"""`aerobee dlq redrive`: the exit code and the result when letters or brokers are missing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import pytest
from aerobee.broker.v1 import dead_letter_pb2 as pb

import aerobee_client
from aerobee_cli import main, redriving
from aerobee_cli.errors import FAILED, INCOMPLETE
from aerobee_cli.redriving import Request
from aerobee_client.admin.descriptions import ClusterDescription, QueueStatus
from aerobee_client.admin.letters import LetterJobDescription, LetterJobSpec, LetterPreview
from aerobee_client.admin.redriving import letter_job
from aerobee_wire.redrive import WITHOUT
from aerobee_wire.status import Code, MqError

SPEC = LetterJobSpec(consumer_group="billing", target="origin")


class Admin:
    """Two brokers have a dead letter each. Those in `gone` leave once the job has started."""

    gone: Sequence[str] = ()
    failed = 0

    def __init__(self, namesrv: str) -> None:
        self._jobs: dict[str, pb.LetterJob] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def cluster(self) -> ClusterDescription:
        return ClusterDescription((), ())

    async def topic_status(self, topic: str, **_: Any) -> list[QueueStatus]:
        return [QueueStatus(topic, name, 0, 0, 1, 0, 0) for name in "ab"]

    async def delete_topic(self, topic: str, *, silent: list[MqError]) -> bool:
        error = MqError(Code.REQUEST_TIMEOUT, "broker b: no answer")
        error.at_broker("b")
        silent.append(error)
        return True

    async def preview_letter_job(self, broker: str, spec: LetterJobSpec) -> LetterPreview:
        found = pb.PreviewLetterJobResponse(stored=1, selected=1, would_send=1)
        found.missing_ids.extend(set(spec.ids) - {"known"})
        return LetterPreview.of(found)

    async def start_letter_job(self, broker: str, job_id: str, spec: LetterJobSpec) -> None:
        self._jobs[broker] = pb.LetterJob(
            job_id=job_id, state=pb.LETTER_JOB_DONE, sent=1, failed=self.failed
        )

    async def letter_jobs(self, **_: Any) -> list[LetterJobDescription]:
        there = {name: job for name, job in self._jobs.items() if name not in self.gone}
        return [LetterJobDescription.of(name, job) for name, job in there.items()]

    async def letter_failures(self, broker: str, job_id: str) -> list[Any]:
        raise MqError(Code.BROKER_NOT_EXIST, f"no broker {broker}")


@pytest.fixture(autouse=True)
def admin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aerobee_client, "AsyncAdminClient", Admin)
    monkeypatch.setattr(letter_job, "PATIENCE_S", 0.0)
    monkeypatch.setattr("aerobee_cli.output.silence_client", lambda: None)


def run(capsys: pytest.CaptureFixture[str], **options: Any) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, the object on stdout and the text on stderr."""
    request = Request(namesrv="", job_id="job-1", spec=SPEC, json=True)
    code = redriving.run(replace(request, **options))
    shown = capsys.readouterr()
    return code, json.loads(shown.out), shown.err


def test_all_letters_are_sent(capsys: pytest.CaptureFixture[str]) -> None:
    code, result, notes = run(capsys)
    assert (code, result["sent"], result["lost_brokers"], notes) == (0, 2, [], "")


def test_a_broker_that_left_before_its_end_makes_the_result_incomplete(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admin, "gone", ["b"])
    code, result, notes = run(capsys)
    assert (code, result["sent"], result["lost_brokers"]) == (INCOMPLETE, 1, ["b"])
    assert "broker b" in notes and "job-1" in notes


def test_failures_that_no_broker_lists_are_noted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admin, "failed", 1)
    code, result, notes = run(capsys)
    assert (code, result["failed"], result["failures"]) == (FAILED, 2, [])
    assert "no broker a" in notes and "no broker b" in notes


def test_a_detached_job_is_an_object_with_its_id_and_brokers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, result, _ = run(capsys, detach=True)
    assert code == 0
    assert (result["job_id"], result["brokers"], result["missing"]) == ("job-1", ["a", "b"], [])


def test_an_id_that_no_letter_has_fails_a_detached_job_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = replace(SPEC, ids=frozenset({"known", "absent"}))
    code, result, _ = run(capsys, spec=spec, detach=True)
    assert code == FAILED
    assert [each["message_id"] for each in result["missing"]] == ["absent"]


def test_many_letters_that_are_gone_are_one_row_and_json_lists_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A list of an older report may have lost all of its letters."""
    spec = replace(SPEC, ids=frozenset({"known", *(f"absent-{n}" for n in range(500))}))
    _, result, _ = run(capsys, spec=spec, dry_run=True)
    assert len(result["missing"]) == 500
    request = Request(namesrv="", job_id="job-1", spec=spec, dry_run=True)
    assert redriving.run(request) == FAILED
    (row,) = (line for line in capsys.readouterr().out.splitlines() if "absent" in line)
    assert "and 499 more" in row and "billing has no dead letter" in row


def test_a_purge_that_does_not_reach_a_broker_is_incomplete(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main.main(["dlq", "purge", "billing", "--yes", "--json", "--namesrv", "x:1"])
    shown = capsys.readouterr()
    assert code == INCOMPLETE and json.loads(shown.out)["deleted"]
    assert "not changed: broker b: no answer" in shown.err
    assert "when b answers again, repeat the command" in shown.err


def test_no_reason_is_an_option_and_excludes_a_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[LetterJobSpec] = []

    async def preview(_: Admin, broker: str, spec: LetterJobSpec) -> LetterPreview:
        asked.append(spec)
        return LetterPreview.of(pb.PreviewLetterJobResponse(reasons=[pb.LetterCount(letters=1)]))

    monkeypatch.setattr(Admin, "preview_letter_job", preview)
    command = ["dlq", "redrive", "billing", "--all", "--to", "origin", "--dry-run"]
    command += ["--no-reason", "--namesrv", "x:1"]
    assert main.main(command) == 0 and all(each.no_reason for each in asked)
    assert {each.message().selection.reason for each in asked} == {WITHOUT}
    assert "(none)" in capsys.readouterr().out
    assert main.main([*command, "--reason", "Timeout"]) == 2
    assert "exclude each other" in capsys.readouterr().err
