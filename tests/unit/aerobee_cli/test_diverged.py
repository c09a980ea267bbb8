"""`aerobee broker diverged resend`: its counts, if a broker refuses a part of the messages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Self

import pytest

from aerobee_cli import main
from aerobee_client.admin.descriptions import DivergedFile, DivergedMessage, DivergedPage
from aerobee_client.admin.diverged import SEND_MESSAGES
from aerobee_wire.record import decode
from aerobee_wire.status import Code, MqError
from support.records import encode

FILE = DivergedFile(
    broker_name="b", replica_id=2, address="b:2", name="1-40.log", epoch=1, begin_offset=40, size=10
)
RECORD = decode(encode(topic="orders", body=b"x"), 0)


def message(number: int) -> DivergedMessage:
    return DivergedMessage(
        topic="orders", kind="message", message_id=f"A{number}", keys="", tag="", body_size=1,
        queue_id=0, reconsume_times=0, physical_offset=number, store_timestamp_ms=0, stored=False,
        record=RECORD,
    )  # fmt: skip


class FullBroker:
    """Accepts `room` requests."""

    def __init__(self, room: int) -> None:
        self._room = room

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def list_diverged(self, name: str, *, silent: list[MqError]) -> list[DivergedFile]:
        return [FILE]

    def read_diverged(self, file: DivergedFile, position: int) -> DivergedPage:
        messages = [message(number) for number in range(SEND_MESSAGES + 1)]
        return DivergedPage(
            next_position=10, internal_count=0, corrupted_count=0, messages=messages
        )

    def resend_diverged(
        self, file: DivergedFile, messages: Sequence[DivergedMessage], *, dry_run: bool
    ) -> int:
        if not self._room:
            raise MqError(Code.DISK_FULL, "the disk is full")
        self._room -= 1
        return len(messages)


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
@pytest.mark.parametrize(("room", "sent"), [(2, SEND_MESSAGES + 1), (1, SEND_MESSAGES), (0, 0)])
def test_a_resend_counts_each_request_by_its_own_answer(
    room: int,
    sent: int,
    options: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = "aerobee_cli.commands.diverged"
    monkeypatch.setattr("aerobee_cli.options.admin_client", lambda _: FullBroker(room))
    monkeypatch.setattr(f"{module}.look_at", lambda *_: SimpleNamespace(absent=[]))
    code = main.main(["broker", "diverged", "resend", "b", "--json", *options])
    out, err = capsys.readouterr()
    result: dict[str, Any] = json.loads(out)
    failed = SEND_MESSAGES + 1 - sent
    assert (result["sent"], result["failed"]) == (sent, failed)
    assert (code, "disk is full" in err) == ((1, True) if failed else (0, False))
