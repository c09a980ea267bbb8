"""What was cut off a log: listed, read in whole records, counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_broker.disk import RealDisk
from aerobee_broker.replication.log import diverged
from aerobee_broker.replication.log.diverged import DivergedFile, DivergedFiles
from aerobee_wire.record import BLANK, MAGIC_BLANK, decode
from aerobee_wire.status import Code
from support.codes import raises_code
from support.records import encode

BEGIN = 4_096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "diverged"
    path.mkdir()
    return path


@pytest.fixture
def files(folder: Path) -> DivergedFiles:
    return DivergedFiles(RealDisk(), folder)


def record(topic: str, body: bytes, at: int) -> bytes:
    return encode(topic=topic, body=body, physical_offset=BEGIN + at)


def tail(*topics_and_bodies: tuple[str, bytes], blank_after: int = -1) -> bytes:
    data = b""
    for number, (topic, body) in enumerate(topics_and_bodies):
        data += record(topic, body, len(data))
        if number == blank_after:
            data += BLANK.pack(64, MAGIC_BLANK) + bytes(64 - BLANK.size)
    return data


def all_of(files: DivergedFiles, name: str) -> tuple[bytes, int]:
    """What reads give one after the other, and how many they were."""
    found, reads = b"", 0
    while data := files.read(name, len(found)):
        found += data
        reads += 1
    return found, reads


def test_without_a_cut_there_is_none(tmp_path: Path) -> None:
    assert DivergedFiles(RealDisk(), tmp_path / "diverged").files() == []


def test_files_are_listed_by_epoch_and_offset(folder: Path, files: DivergedFiles) -> None:
    for name in ("10-0.log", "2-400.log", "2-50.log", "2-50.2.log", "2-7.log.tmp", "notes.txt"):
        (folder / name).write_bytes(b"abc")
    assert files.files() == [
        DivergedFile("2-50.2.log", 2, 50, 3),
        DivergedFile("2-50.log", 2, 50, 3),
        DivergedFile("2-400.log", 2, 400, 3),
        DivergedFile("10-0.log", 10, 0, 3),
    ]


def test_whole_records_are_read_with_the_blanks_between(
    folder: Path, files: DivergedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tail(("a", b"1" * 300), ("b", b"2" * 3_000), ("c", b"3" * 10), blank_after=0)
    (folder / "1-4096.log").write_bytes(data)
    assert all_of(files, "1-4096.log") == (data, 1)
    monkeypatch.setattr(diverged, "READ_BYTES", 1_000)  # less than the second record
    found, reads = all_of(files, "1-4096.log")
    assert (found, reads) == (data, 3)
    assert decode(found, 0).topic == "a"


@pytest.mark.parametrize("name", ["1-1.log", "../config/epochs.json", "1-4096.log/../x", ""])
def test_a_file_that_is_none_of_them_is_not_read(
    folder: Path, files: DivergedFiles, name: str
) -> None:
    (folder / "1-4096.log").write_bytes(tail(("a", b"1")))
    with raises_code(Code.QUERY_NOT_FOUND):
        files.read(name, 0)


def test_what_is_before_damage_is_read(folder: Path, files: DivergedFiles) -> None:
    good = tail(("a", b"1"))
    (folder / "1-4096.log").write_bytes(good + bytes(40))
    assert files.read("1-4096.log", 0) == good
    with raises_code(Code.MESSAGE_CORRUPTED):
        files.read("1-4096.log", len(good))
    assert files.read("1-4096.log", len(good) + 40) == b""
    assert files.read("1-4096.log", -1) == b""


def test_messages_of_clients_are_counted_and_journals_not(
    folder: Path, files: DivergedFiles
) -> None:
    topics = (
        *("orders", "%RETRY%billing", "%DLQ%billing"),
        *("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"),
        *("rmq_sys_METADATA_LOG", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "rmq_sys_REVIVE_LOG_c"),
    )
    data = tail(*((topic, b"x") for topic in topics), blank_after=2)
    (folder / "1-4096.log").write_bytes(data)
    assert files.count_messages("1-4096.log") == 6
