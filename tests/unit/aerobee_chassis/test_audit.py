"""The audit log: links between lines, rotation, crashes, a full disk, refused changes."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from aerobee.access.v1 import access_pb2
from aerobee.broker.v1 import admin_pb2, message_pb2

from aerobee_chassis.clock import SystemClock
from aerobee_chassis.errors import StartError
from aerobee_chassis.rpc.audit import Audit, ChangeNotAudited
from aerobee_chassis.rpc.audit_log import AuditLog
from aerobee_chassis.rpc.call import Call
from aerobee_cli import main
from aerobee_wire.access.caller import ANYBODY, Caller
from aerobee_wire.audit import BrokenLine, Chain
from aerobee_wire.identity import Identity
from aerobee_wire.permissions import NotPermitted
from aerobee_wire.rpcs import DELETE_TOPIC, SEND, UPDATE_TOPIC
from aerobee_wire.status import Code, MqError

PUT_USER = "/aerobee.access.v1.NamesrvAccessService/PutUser"
ADMIN = "aerobee://prod/admin/ops"


@dataclass
class OpenCall:
    """A call on a port that checks no callers."""

    peer: str = "10.0.0.1:40000"
    certificate_uris: tuple[str, ...] = (ADMIN,)
    caller: Caller = ANYBODY


class Inline(Executor):
    """Run each function at once: the loop of unit tests waits for no thread."""

    def submit(self, function: Any, /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(function(*given, **named))
        except OSError as error:
            done.set_exception(error)
        return done


def audit_at(path: Path) -> Audit:
    log = AuditLog(path, max_bytes=1 << 20, keep=2)
    return Audit(log, "prod", SystemClock(), Inline())


def call() -> Call:
    return cast(Call, OpenCall())


def records(*paths: Path) -> list[dict[str, Any]]:
    """Return the verified lines of files, the oldest first."""
    chain = Chain()
    return [record for path in paths for record in chain.check(path.open("rb"))]


def written(path: Path, *names: str, max_bytes: int = 1 << 20) -> None:
    log = AuditLog(path, max_bytes=max_bytes, keep=2)
    log.open()
    for name in names:
        log.append({"name": name}, durable=False)
    log.close()


@asynccontextmanager
async def running(path: Path) -> AsyncIterator[Audit]:
    audit = audit_at(path)
    await audit.start()
    try:
        yield audit
    finally:
        await audit.stop()


def test_lines_continue_across_restarts_and_rotations(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    written(path, "a", "b", max_bytes=500)
    written(path, "c", "d", "e", max_bytes=500)
    files = [tmp_path / "audit.log.2", tmp_path / "audit.log.1", path]
    found = [record["name"] for record in records(*files)]
    assert found == ["a", "b", "c", "d", "e"][-len(found) :]
    assert len(found) > 2
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)


def test_log_continues_after_a_crash_in_the_middle_of_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    written(path, "a")
    path.rename(tmp_path / "audit.log.1")
    written(path, "b")
    assert [each["name"] for each in records(tmp_path / "audit.log.1", path)] == ["a", "b"]


def test_torn_line_is_removed_and_named(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    written(path, "a")
    with path.open("ab") as file:
        file.write(b'{"name": "tor')
    with pytest.raises(BrokenLine, match="incomplete"):
        records(path)
    written(path, "b")
    assert records(path)[1]["torn_bytes"] == 13


def _changed(lines: list[bytes]) -> None:
    lines[2] = lines[2].replace(b'"c"', b'"x"')


def _removed(lines: list[bytes]) -> None:
    del lines[2]


def _swapped(lines: list[bytes]) -> None:
    lines[2], lines[3] = lines[3], lines[2]


@pytest.mark.parametrize("damage", [_changed, _removed, _swapped])
def test_verify_names_the_first_broken_line(
    damage: Callable[[list[bytes]], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.log"
    written(path, "a", "b", "c", "d", "e")
    assert main.main(["audit", "verify", str(path)]) == 0
    lines = path.read_bytes().splitlines(keepends=True)
    damage(lines)
    path.write_bytes(b"".join(lines))
    assert main.main(["audit", "verify", str(path)]) == 1
    assert f"{path}:3: " in capsys.readouterr().err


def test_verify_orders_files_and_finds_a_missing_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.log"
    written(path, "a", "b", "c", "d", "e", max_bytes=500)
    files = sorted(map(str, tmp_path.glob("audit.log*")))  # with audit.log.lock, as a shell does
    assert main.main(["audit", "verify", *files]) == 0
    assert main.main(["audit", "verify", str(path), f"{path}.2"]) == 1
    assert "were removed" in capsys.readouterr().err


def test_tail_escapes_control_characters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path, max_bytes=1 << 20, keep=1)
    log.open()
    for user in ("first", "a\x1b[2J\nb"):
        log.append({"timestamp_ms": 1, "event": "change", "user": user}, durable=False)
    log.close()
    assert main.main(["audit", "tail", str(path), "--lines", "1"]) == 0
    assert capsys.readouterr().out == "1970-01-01T00:00:00.001Z change a\\x1b[2J b\n"
    assert main.main(["audit", "tail", str(path), "--json"]) == 0
    out = capsys.readouterr().out
    assert out == path.read_text()


async def test_change_has_a_line_before_it_and_a_result_after(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    async with running(path) as audit:
        async with audit.change(DELETE_TOPIC.path, admin_pb2.DeleteTopicRequest(topic="a"), call()):
            assert records(path)[-1]["event"] == "change"
        with pytest.raises(MqError):
            async with audit.change(
                DELETE_TOPIC.path, admin_pb2.DeleteTopicRequest(topic="b"), call()
            ):
                raise MqError(Code.TOPIC_NOT_EXIST, "none")
    opened, first, done, second, failed = records(path)
    assert opened["event"] == "opened"
    assert first["certificate"] == ADMIN
    assert first["address"] == "10.0.0.1:40000"
    assert first["rpc"] == "AdminService/DeleteTopic"
    assert first["resources"] == ["Topic:a"]
    assert (done["request_id"], done["result"]) == (first["request_id"], "OK")
    assert (failed["request_id"], failed["result"]) == (second["request_id"], "TOPIC_NOT_EXIST")


async def test_no_secret_is_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    request = access_pb2.PutUserRequest(username="billing", secret="hunter2-hunter2")
    async with running(path) as audit, audit.change(PUT_USER, request, call()):
        pass
    assert records(path)[1]["resources"] == ["User:billing"]
    assert "hunter2" not in path.read_text()


def test_sends_and_dry_runs_are_no_changes(tmp_path: Path) -> None:
    audit = audit_at(tmp_path / "audit.log")
    assert audit.covers(DELETE_TOPIC.path, admin_pb2.DeleteTopicRequest())
    assert audit.covers(UPDATE_TOPIC.path, admin_pb2.UpdateTopicRequest())
    assert not audit.covers(UPDATE_TOPIC.path, admin_pb2.UpdateTopicRequest(dry_run=True))
    assert not audit.covers(SEND.path, message_pb2.SendRequest())


async def test_full_disk_refuses_the_change_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    real, full, made = os.write, True, []

    def write(file: int, data: bytes) -> int:
        if not full:
            return real(file, data)
        if data.startswith(b"{"):  # a part of the line fits
            return real(file, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    async with running(path) as audit:
        monkeypatch.setattr(os, "write", write)
        request = admin_pb2.DeleteTopicRequest(topic="a")
        with pytest.raises(ChangeNotAudited, match="No space left"):
            async with audit.change(DELETE_TOPIC.path, request, call()):
                made.append(request)
        assert not made
        full = False
        async with audit.change(DELETE_TOPIC.path, request, call()):
            made.append(request)
    assert made
    _, change, result = records(path)
    assert change["torn_bytes"] == 10
    assert result["result"] == "OK"


async def test_rejected_calls_of_a_minute_are_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    client = Caller(Identity("prod", "client", "billing"), None, "10.0.0.1:1")
    stranger = Caller(None, None, "10.0.0.2:1")
    async with running(path) as audit:
        for caller in (client, client, client, stranger):
            audit.rejected(caller, DELETE_TOPIC.path, NotPermitted("no\n", DELETE_TOPIC.path))
    found = [(each["certificate"], each["address"], each["count"]) for each in records(path)[1:]]
    name = "aerobee://prod/client/billing"
    assert found == [(name, "10.0.0.1:1", 1), ("", "10.0.0.2:1", 1), (name, "10.0.0.1:1", 2)]


async def test_rejected_callers_of_a_minute_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_chassis.rpc.audit.MOST_CALLERS", 2)
    path = tmp_path / "audit.log"
    async with running(path) as audit:
        for host in range(9):
            error = NotPermitted("no", SEND.path)
            audit.rejected(Caller(None, None, f"10.0.0.{host}:1"), SEND.path, error)
    found = [(each["rpc"], each["count"]) for each in records(path)[1:]]
    rpc = "MessageService/Send"
    assert found == [(rpc, 1), (rpc, 1), ("others", 1), ("others", 6)]


async def test_two_processes_do_not_share_a_log(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    async with running(path):
        other = audit_at(path)
        with pytest.raises(StartError, match="another process"):
            await other.start()
        await other.stop()


async def test_damaged_last_line_stops_the_start(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    written(path, "a")
    path.write_text(path.read_text().replace('"a"', '"b"'))
    audit = audit_at(path)
    with pytest.raises(StartError, match="cannot be continued"):
        await audit.start()
    await audit.stop()
    assert json.loads(path.read_text())["name"] == "b"
