"""*Write and read* of docs/audit.md: lines of each kind, crashes, altered lines, a full log."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from aerobee_chassis.rpc.audit_log import AuditLog
from aerobee_client import AdminClient, Credentials, Message, MqError, Producer, Tls
from aerobee_client.admin.descriptions import PolicyDescription
from aerobee_wire.status import Code
from support.clock.polling import until_sync
from support.codes import raises_code
from support.processes.command import aerobee
from support.processes.service import SMALL_LOG, ServiceProcess

SECRET = "hunter2-hunter2"
SMALLEST_FILE = 64 * 1024


class Audited:
    """A name server and a broker with certificates and audit logs."""

    def __init__(self, stack: ExitStack, data: Path) -> None:
        self.certificates = data / "certs"
        made = aerobee("certs", "init", str(self.certificates), "--broker", "broker-a")
        assert made.returncode == 0, made.stderr
        self.logs = {name: data / f"{name}-audit.log" for name in ("namesrv", "broker")}
        self.namesrv = stack.enter_context(self._process("namesrv", data))
        self.broker = stack.enter_context(
            self._process(
                "broker", data, "--namesrv", self.namesrv.address, SMALL_LOG,
                f"--set=auditLogMaxBytes={SMALLEST_FILE}", "--set=auditLogMaxFiles=1",
            )
        )  # fmt: skip
        self.tls = self._tls("admin")

    def _process(self, name: str, data: Path, *arguments: str) -> ServiceProcess:
        return ServiceProcess(
            f"aerobee_{name}", "--port", "0", "--data", str(data / name),
            "--config", str(self.certificates / f"{name}.conf"),
            f"--set=auditLogPath={self.logs[name]}", *arguments,
        )  # fmt: skip

    def _tls(self, role: str) -> Tls:
        at = self.certificates
        return Tls(at / "ca.crt", at / f"{role}.crt", at / f"{role}.key")

    def admin(self) -> AdminClient:
        return AdminClient(self.namesrv.address, tls=self.tls)

    def of_user(self, name: str, secret: str = SECRET) -> AdminClient:
        """Return a client that signs. Its certificate has no right to administer."""
        credentials = Credentials(name, secret)
        tls = self._tls("client")
        return AdminClient(self.namesrv.address, tls=tls, credentials=credentials)

    def files(self, name: str) -> list[str]:
        path = self.logs[name]
        return sorted(map(str, path.parent.glob(f"{path.name}*")))

    def verify(self, name: str) -> int:
        return aerobee("audit", "verify", *self.files(name)).returncode


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[Audited]:
    with ExitStack() as stack:
        yield Audited(stack, tmp_path)


def test_changes_logins_and_rejected_calls_have_lines(
    audited: Audited, monkeypatch: pytest.MonkeyPatch
) -> None:
    with audited.admin() as admin:
        admin.create_user("ann", SECRET)
        admin.create_policies("ann", [PolicyDescription("Topic:orders", ("Get", "List"))])
        admin.create_topic("orders", queues=4)
        admin.update_topic("orders", queues=8)
        with audited.of_user("ann") as ann:
            until_sync(lambda: "orders" in {each.topic for each in ann.list_topics()})
            assert ann.log_in(visitor="192.0.2.7") == "ann"
            for _ in range(3):
                with raises_code(Code.NO_PERMISSION):
                    ann.delete_topic("orders")
        with audited.of_user("ann", "another key") as stranger, raises_code(Code.NO_PERMISSION):
            stranger.log_in()
        admin.delete_topic("orders")

        def lines(**query: Any) -> list[Any]:
            page = admin.audit_page(**query)
            assert not page.unanswered and not page.without_log
            return list(page.lines)

        (user,) = lines(rpc="PutUser")
        assert (user.resources, user.result) == (("User:ann",), "OK")
        assert user.proof == "certificate" and user.certificate.endswith("/admin/admin")
        assert user.before is None and user.after["secrets"] == 1
        (update,) = (each for each in lines(rpc="UpdateTopic") if each.before)
        assert update.before["write_queue_count"] == 4 and update.after["write_queue_count"] == 8
        (deletion,) = lines(rpc="AdminService/DeleteTopic", event="change")
        assert deletion.before["topic"] == "orders" and deletion.after is None
        (login,) = lines(event="login")
        assert (login.user, login.proof, login.visitor) == ("ann", "signature", "192.0.2.7")
        (guess,) = lines(rpc="LogIn", event="rejected")
        assert (guess.user, guess.claimed_user, guess.result) == ("", "ann", "NO_PERMISSION")
        (refused, *_) = lines(rpc="DeleteTopic", event="rejected")
        assert (refused.user, refused.proof) == ("ann", "signature")

    for name in ("namesrv", "broker"):
        assert audited.verify(name) == 0
        assert SECRET not in audited.logs[name].read_text()
    for name in ("trust_cert", "cert", "key"):
        path = getattr(audited.tls, {"trust_cert": "ca", "cert": "certificate", "key": "key"}[name])
        monkeypatch.setenv(f"AEROBEE_TLS_{name.upper()}_PATH", str(path))
    listed = aerobee("audit", "list", "--user", "ann", "--json", namesrv=audited.namesrv.address)
    assert listed.returncode == 0, listed.stderr
    assert {each["event"] for each in json.loads(listed.stdout)} == {"login", "rejected"}


def test_a_killed_process_continues_its_log_and_altered_lines_are_found(audited: Audited) -> None:
    path = audited.logs["broker"]
    with audited.admin() as admin:
        admin.create_topic("orders")
        audited.broker.kill()
        with path.open("ab") as file:
            file.write(b'{"timestamp_ms": 17')  # the line that the process wrote when it ended
        assert audited.verify("broker") == 0, "a crash is not a forgery"
        audited.broker.start()
        until_sync(lambda: admin.broker_statuses(silent=[]))
        until_sync(lambda: _is_made(admin))
    assert audited.verify("broker") == 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    reopened = [each for each in records if each["event"] == "opened"][-1]
    assert reopened["torn_bytes"] == 19
    assert audited.broker.stop() == 0
    assert audited.verify("broker") == 0
    lines = path.read_bytes().splitlines(keepends=True)
    for forged in (
        [line.replace(b'"OK"', b'"NO"') for line in lines],
        [*lines[:2], *lines[3:]],
    ):
        path.write_bytes(b"".join(forged))
        assert audited.verify("broker") == 1


def _is_made(admin: AdminClient) -> bool:
    try:
        admin.create_topic("paid")
    except MqError:
        return False
    return True


def test_changes_are_refused_while_the_log_cannot_be_written_and_sends_continue(
    audited: Audited,
) -> None:
    path = audited.logs["broker"]
    with (
        audited.admin() as admin,
        Producer(namesrv=audited.namesrv.address, tls=audited.tls) as producer,
    ):
        admin.create_topic("orders")
        producer.send(Message("orders", b"before"))
        audited.broker.stop()
        _fill(path)
        in_the_way = path.with_name(f"{path.name}.1")  # so that the full file cannot be renamed
        (in_the_way / "x").mkdir(parents=True)
        audited.broker.start()
        until_sync(lambda: admin.broker_statuses(silent=[]))

        def refusal() -> MqError | None:
            try:
                admin.update_topic("orders", queues=16)
            except MqError as error:
                return error if "audit log" in error.message else None
            return None

        refused = until_sync(refusal)
        assert refused is not None and refused.code is Code.SYSTEM_ERROR and refused.retryable
        assert audited.broker.events("change_not_audited")
        before = admin.describe_topic("orders")
        producer.send(Message("orders", b"meanwhile"))
        assert admin.describe_topic("orders") != before, "the message was stored"
        (in_the_way / "x").rmdir()
        in_the_way.rmdir()
        admin.update_topic("orders", queues=16)
    assert audited.verify("broker") == 0


def _fill(path: Path) -> None:
    """Append lines until the file has room for about the line of a start."""
    log = AuditLog(path, max_bytes=1 << 30, keep=1)
    log.open()
    while (room := SMALLEST_FILE - path.stat().st_size) > 900:
        log.append({"timestamp_ms": 1, "event": "opened", "text": "x" * min(room - 850, 8_000)},
                   durable=False)  # fmt: skip
    log.close()
