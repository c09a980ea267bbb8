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
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_chassis.clock import SystemClock
from aerobee_chassis.errors import StartError
from aerobee_chassis.rpc.audit import Audit, ChangeNotAudited, States, Who
from aerobee_chassis.rpc.audit_log import AuditLog
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.services import bind_part
from aerobee_cli import main
from aerobee_wire import files
from aerobee_wire.access.caller import ANYBODY, Caller
from aerobee_wire.access.signature import Signed
from aerobee_wire.access.users import User
from aerobee_wire.audit import BrokenLine, Chain, Link, linked
from aerobee_wire.rpcs import DELETE_TOPIC, LOG_IN, PULL, SEND, UPDATE_TOPIC
from aerobee_wire.status import Code, MqError

PUT_USER = "/aerobee.access.v1.NamesrvAccessService/PutUser"
ADMIN = "aerobee://prod/admin/ops"


@dataclass
class OpenCall:
    """A call on a port that checks no callers."""

    peer: str = "10.0.0.1:40000"
    certificate_uris: tuple[str, ...] = (ADMIN,)
    is_encrypted: bool = True
    caller: Caller = ANYBODY


NO_STATES = States([])


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
    return Audit(log, "prod", SystemClock(), writer=Inline(), with_reads=True)


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


def test_rotation_that_fails_again_and_again_keeps_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    log = AuditLog(path, max_bytes=500, keep=4)
    log.open()
    for name in "abcdef":
        log.append({"name": name}, durable=False)
    replace = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if self == path:
            raise OSError(errno.EIO, "Input/output error")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    for _ in range(3):
        with pytest.raises(OSError, match="Input"):
            log.append({"name": "x" * 500}, durable=False)
    monkeypatch.undo()
    log.append({"name": "g"}, durable=False)
    log.close()
    files = [path, *(tmp_path / f"audit.log.{number}" for number in range(1, 5))]
    found = [each["name"] for each in records(*(file for file in reversed(files) if file.exists()))]
    assert found == list("abcdefg")


@pytest.mark.parametrize("torn", [b'{"name": "tor', b'{"name": "\0\0\0"}\n\0\0'])
def test_torn_line_is_removed_and_named(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "audit.log"
    written(path, "a")
    with path.open("ab") as file:
        file.write(torn)
    with pytest.raises(BrokenLine):
        records(path)
    written(path, "b")
    assert records(path)[1]["torn_bytes"] == len(torn)


def _changed(lines: list[bytes]) -> None:
    lines[2] = lines[2].replace(b'"c"', b'"x"')


def _removed(lines: list[bytes]) -> None:
    del lines[2]


def _replaced(lines: list[bytes]) -> None:
    """Replace a line by one that is whole in itself."""
    record = json.loads(lines[1])
    lines[1], _ = linked({"name": "x"}, Link(1, record["previous"]))


def _of_another_program(lines: list[bytes]) -> None:
    lines[2], _ = linked({"number": "x"}, Link(2, json.loads(lines[1])["hash"]))
    lines[2] = lines[2].replace(b'"number": 3', b'"number": "3"')


def _inserted(lines: list[bytes]) -> None:
    lines.insert(2, lines[1])


def _swapped(lines: list[bytes]) -> None:
    lines[2], lines[3] = lines[3], lines[2]


@pytest.mark.parametrize(
    "damage", [_changed, _removed, _replaced, _inserted, _swapped, _of_another_program]
)
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


@pytest.mark.parametrize("where", ["last file", "older file"])
def test_incomplete_last_line_is_a_crash_and_elsewhere_a_break(
    where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.log"
    written(path, "a", "b", "c", max_bytes=500)
    torn = path if where == "last file" else tmp_path / "audit.log.1"
    torn.write_bytes(torn.read_bytes() + b'{"timesta')
    code = main.main(["audit", "verify", *map(str, tmp_path.glob("audit.log*")), "--json"])
    shown = capsys.readouterr()
    if where == "older file":
        assert code == 1 and "incomplete" in shown.err
        return
    assert code == 0 and "incomplete" in shown.err
    assert json.loads(shown.out)["torn_bytes"] == 9


def test_verify_finds_removed_last_lines_by_a_known_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "audit.log"
    written(path, "a", "b", "c")
    assert main.main(["audit", "verify", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    known = f"{found['last']}:{found['hash']}"
    assert main.main(["audit", "verify", str(path), "--known", known]) == 0
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert main.main(["audit", "verify", str(path)]) == 0
    capsys.readouterr()
    assert main.main(["audit", "verify", str(path), "--known", known]) == 1
    assert "were removed" in capsys.readouterr().err
    written(path, "x")  # a forged line in the place of the removed one
    assert main.main(["audit", "verify", str(path), "--known", known]) == 1
    assert "was replaced" in capsys.readouterr().err


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
        async with audit.change(
            DELETE_TOPIC.path, admin_pb2.DeleteTopicRequest(topic="a"), call(), NO_STATES
        ):
            assert records(path)[-1]["event"] == "change"
        with pytest.raises(MqError):
            async with audit.change(
                DELETE_TOPIC.path, admin_pb2.DeleteTopicRequest(topic="b"), call(), NO_STATES
            ):
                raise MqError(Code.TOPIC_NOT_EXIST, "none")
    opened, first, done, second, failed, closed = records(path)
    assert closed["event"] == "closed"
    assert first["proof"] == "certificate"
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
    async with running(path) as audit, audit.change(PUT_USER, request, call(), NO_STATES):
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
            async with audit.change(DELETE_TOPIC.path, request, call(), NO_STATES):
                made.append(request)
        assert not made
        full = False
        async with audit.change(DELETE_TOPIC.path, request, call(), NO_STATES):
            made.append(request)
    assert made
    assert (audit.refused, audit.lost) == (1, 0)
    _, change, result, _ = records(path)
    assert change["torn_bytes"] == 10
    assert result["result"] == "OK"


async def test_rejected_calls_of_a_minute_are_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    name = "aerobee://prod/client/billing"
    client = Who(certificate=name, address="10.0.0.1:1")
    stranger = Who(address="10.0.0.2:1")
    async with running(path) as audit:
        for who in (client, client, client, stranger):
            audit.rejected(who, DELETE_TOPIC.path, "NO_PERMISSION", "no\n")
    lines = [each for each in records(path) if each["event"] == "rejected"]
    found = [(each["certificate"], each["address"], each["count"]) for each in lines]
    assert found == [(name, "10.0.0.1:1", 1), ("", "10.0.0.2:1", 1), (name, "10.0.0.1:1", 2)]


async def test_rejected_callers_of_a_minute_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aerobee_chassis.rpc.audit.MOST_REJECTED", 2)
    path = tmp_path / "audit.log"
    async with running(path) as audit:
        for host in range(9):
            audit.rejected(Who(address=f"10.0.0.{host}:1"), SEND.path, "NO_PERMISSION", "no")
    found = [(each["rpc"], each["count"]) for each in records(path)[1:-1]]
    rpc = "MessageService/Send"
    assert found == [(rpc, 1), (rpc, 1), ("others", 1), ("others", 6)]


async def test_read_bodies_of_a_minute_are_two_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    assert audit_at(path).reads(PULL.path) and not audit_at(path).reads(SEND.path)
    async with running(path) as audit:
        for topic in ("orders", "orders", "orders", "paid"):
            request = message_pb2.PullRequest(topic=topic, consumer_group="g")
            audit.read(PULL.path, request, call())
    lines = [each for each in records(path) if each["event"] == "read"]
    found = [(each["resources"], each["count"]) for each in lines]
    orders, paid = ["Group:g", "Topic:orders"], ["Group:g", "Topic:paid"]
    assert found == [(orders, 1), (paid, 1), (orders, 2)]
    assert lines[0]["certificate"] == ADMIN


async def test_login_is_one_durable_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.log"
    signed = Caller(None, Signed(User("ann", (b"s",)), b"s", ""), "10.0.0.9:1")
    request = access_pb2.LogInRequest(visitor="192.0.2.7")
    async with running(path) as audit:
        assert audit.covers(LOG_IN.path, request)
        for caller in (signed, ANYBODY):
            async with audit.change(
                LOG_IN.path, request, cast(Call, OpenCall(caller=caller)), NO_STATES
            ):
                pass
        monkeypatch.setattr(files, "sync_data", raise_full)
        with pytest.raises(ChangeNotAudited):
            async with audit.change(
                LOG_IN.path, request, cast(Call, OpenCall(caller=signed)), NO_STATES
            ):
                pass
        monkeypatch.undo()
    line, *_ = [each for each in records(path) if each["event"] == "login"]
    found = (line["user"], line["proof"], line["address"], line["visitor"], line["result"])
    assert found == ("ann", "signature", "10.0.0.9:1", "192.0.2.7", "OK")


def raise_full(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


class Topics:
    """A service with topics, as a broker has it."""

    def __init__(self) -> None:
        self.queues = {"a": 4}

    async def get_topic(
        self, request: admin_pb2.GetTopicRequest, _: Call
    ) -> admin_pb2.GetTopicResponse:
        if request.topic not in self.queues:
            raise MqError(Code.TOPIC_NOT_EXIST, "none")
        config = namesrv_pb2.TopicConfig(
            topic=request.topic, read_queue_count=self.queues[request.topic]
        )
        return admin_pb2.GetTopicResponse(topic=config)


async def test_lines_have_the_states_before_and_after(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    topics = Topics()
    descriptor = admin_pb2.DESCRIPTOR.services_by_name["AdminService"]
    states = States([bind_part(descriptor, topics)])
    async with running(path) as audit:
        request = admin_pb2.UpdateTopicRequest(topic=namesrv_pb2.TopicConfig(topic="a"))
        async with audit.change(UPDATE_TOPIC.path, request, call(), states):
            topics.queues["a"] = 8
        deletion = admin_pb2.DeleteTopicRequest(topic="a")
        async with audit.change(DELETE_TOPIC.path, deletion, call(), states):
            topics.queues.clear()
    updated, deleted = (each for each in records(path) if each["event"] == "result")
    assert updated["before"] == {"topic": "a", "read_queue_count": 4}
    assert updated["after"] == {"topic": "a", "read_queue_count": 8}
    assert deleted["before"] == updated["after"]
    assert "after" not in deleted


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
