"""`aerobee store check` and `dump`: a whole store passes, and all damage is reported."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.disk import RealDisk
from aerobee_broker.inspection.__main__ import main
from aerobee_broker.replication.log.epochs import EpochFile, EpochHistory
from aerobee_broker.store.message_store import MessageStore
from aerobee_broker.store.messages import NewMessage
from aerobee_broker.store.options import StoreOptions
from aerobee_wire import properties as props
from support import records
from support.disk.replicated import confirm, open_replica, ship_all
from support.disk.stores import open_store, send

LOG_FILE = 16_384
OPTIONS = StoreOptions(
    commit_log_file_size=LOG_FILE,
    consume_queue_file_size=400,
    index_slot_count=101,
    index_entry_count=64,
)
SETS = ("--set=mappedFileSizeConsumeQueue=400", "--set=maxHashSlotNum=101", "--set=maxIndexNum=64")
COUNT = 200


def opened(path: Path) -> MessageStore:
    return open_store(RealDisk(), OPTIONS, path=path)


def message(number: int) -> NewMessage:
    properties = {
        props.TAGS: f"t{number % 3}",
        props.KEYS: f"key{number} even{number % 2}",
        props.UNIQUE_KEY: f"ID{number}",
    }
    topic = f"topic{number % 2}"
    return NewMessage(topic, number % 4, b"body %d" % number, props.encode(properties))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with several files of every kind."""
    path = tmp_path_factory.mktemp("made") / "broker" / "store"
    store = opened(path)
    for number in range(COUNT):
        send(store, [message(number)])
    store.close()
    return path


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return Path(shutil.copytree(made, tmp_path / "broker" / "store"))


def check(store: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["check", str(store), "--json", *SETS])
    return code, json.loads(capsys.readouterr().out)


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_whole_store_has_nothing_wrong(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    code, report = check(store, capsys)
    assert (code, report["ok"], report["problems"], report["notes"]) == (0, True, [], [])
    assert report["records"] == report["units"] == COUNT
    assert report["index_entries"] == 3 * COUNT
    assert report["log_files"] > 1
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("above", [0, 1, 2])
def test_store_is_found_below_the_data_directory(
    store: Path, above: int, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = [store, *store.parents][above]
    assert main(["check", str(directory), *SETS, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == COUNT


def first_file(store: Path, folder: str) -> Path:
    return min(path for path in (store / folder).rglob("*") if path.is_file())


def flip_a_body(store: Path) -> str:
    path = first_file(store, "commitlog")
    overwrite(path, path.read_bytes().index(b"body 7"), b"B")
    return "CRC"


def break_a_header(store: Path) -> str:
    path = first_file(store, "commitlog")
    second = int.from_bytes(path.read_bytes()[:4], "big")
    overwrite(path, second + 4, b"\0\0\0\0")
    return "magic code 0x00000000"


def lose_a_log_file(store: Path) -> str:
    sorted((store / "commitlog").iterdir())[1].unlink()
    return "missing in the middle"


def shorten_a_log_file(store: Path) -> str:
    path = first_file(store, "commitlog")
    path.write_bytes(path.read_bytes()[:-1])
    return "instead of 16384"


def wipe_the_tail(store: Path) -> str:
    path = max((store / "commitlog").iterdir())
    overwrite(path, 0, bytes(1_000))
    return "zeros in the place of a record"


def change_a_unit(store: Path) -> str:
    overwrite(first_file(store, "consumequeue"), 20 + 12, b"\x55")
    return "the unit of queue offset 1"


def lose_a_queue(store: Path) -> str:
    shutil.rmtree(store / "consumequeue" / "topic0" / "2")
    return "its units end at queue offset 0"


def add_a_queue(store: Path) -> str:
    shutil.copytree(store / "consumequeue" / "topic0" / "0", store / "consumequeue" / "other" / "0")
    return "belong to no record"


def change_an_entry(store: Path) -> str:
    overwrite(first_file(store, "index"), 40 + 4 * 101 + 20 * 5 + 4, b"\0\0\0\0\0\0\0\x01")
    return "1 keys of the log are missing"


def change_a_slot(store: Path) -> str:
    overwrite(first_file(store, "index"), 40 + 4 * 50, b"\0\0\x30\0")
    return "hash slots are wrong"


def break_json(store: Path) -> str:
    (store / "config" / "topics.json").write_text("{")
    return "invalid JSON"


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_body,
        break_a_header,
        lose_a_log_file,
        shorten_a_log_file,
        wipe_the_tail,
        change_a_unit,
        lose_a_queue,
        add_a_queue,
        change_an_entry,
        change_a_slot,
        break_json,
    ],
)
def test_damage_is_reported_with_its_file(
    store: Path, damage: Callable[[Path], str], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = damage(store)
    code, report = check(store, capsys)
    assert code == 1
    found = [problem for problem in report["problems"] if wanted in problem["what"]]
    assert found, report["problems"]
    assert all(problem["file"].startswith(str(store)) for problem in report["problems"])


def test_damaged_record_is_reported_with_its_physical_offset(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = first_file(store, "commitlog")
    sizes = path.read_bytes()
    flip_a_body(store)
    code, report = check(store, capsys)
    physical_offset = 0
    for _ in range(7):
        physical_offset += int.from_bytes(sizes[physical_offset : physical_offset + 4], "big")
    assert code == 1
    assert [problem["physical_offset"] for problem in report["problems"]] == [physical_offset]


def test_check_keeps_each_record_that_recovery_keeps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last record has room for four lost ones before it: a refused one and a hole together."""
    data = b""
    for queue_offset, hole in ((0, 0), (5_000, 100), (5, 0)):
        data += records.encode(
            topic="a",
            queue_offset=queue_offset,
            physical_offset=len(data),
            body=b"x" * 200,
            whole_crc=True,
        )
        data += b"\xee" * hole
    directory = tmp_path / "store" / "commitlog"
    directory.mkdir(parents=True)
    (directory / ("0" * 20)).write_bytes(data.ljust(LOG_FILE, b"\0"))
    _, report = check(tmp_path / "store", capsys)
    damaged: list[object] = []

    def on_event(name: str, fields: Mapping[str, object]) -> None:
        if name == "corrupt_record":
            damaged.append(fields["physical_offset"])

    store = open_store(RealDisk(), OPTIONS, path=tmp_path / "store", on_event=on_event)
    assert store.max_offset("a", 0) == 6
    assert [problem["physical_offset"] for problem in report["problems"]] == damaged
    store.close()


def test_torn_tail_of_a_crash_is_a_note(made: Path, tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    send(store, [message(1)])
    end = store.append([message(2)])[0].physical_offset
    store.flush.write()
    # A copy taken now is what a crash would leave; half of its last record is lost.
    crashed = Path(shutil.copytree(tmp_path / "store", tmp_path / "crashed"))
    store.close()
    overwrite(first_file(crashed, "commitlog"), end + 100, bytes(200))
    assert main(["check", str(crashed), *SETS]) == 0


def test_of_a_replica_epochs_and_the_unconfirmed_tail_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tail that no queue has yet is no problem, and neither is what was cut and kept."""
    options = replace(OPTIONS, replicated=True)
    master = open_store(RealDisk(), OPTIONS, path=tmp_path / "master")
    replica = open_replica(RealDisk(), options, path=tmp_path / "store")
    ends = [send(master, [message(number)])[0].physical_offset for number in range(20)]
    ship_all(master, replica)
    confirm(replica, ends[15])
    end = replica.end_offset
    for each in (master, replica):
        each.close()
    history = EpochHistory().begin(1, "a store", 0).begin(4, "another", ends[10])
    EpochFile(RealDisk(), tmp_path / "store" / "config" / "epochs.json").save(history)
    (tmp_path / "store" / "diverged").mkdir()
    (tmp_path / "store" / "diverged" / "1-700.log").write_bytes(b"cut")

    code, report = check(tmp_path / "store", capsys)
    assert (code, report["problems"]) == (0, [])
    assert report["epochs"] == {"0": 0, "1": 0, "4": ends[10]}
    assert report["unconfirmed_bytes"] == end - ends[15]
    assert report["records"] == 20 and len(report["notes"]) == 2
    assert main(["check", str(tmp_path / "store"), *SETS]) == 0


def test_open_store_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = opened(tmp_path / "store")
    try:
        assert main(["check", str(tmp_path / "store")]) == 1
    finally:
        store.close()
    assert str(tmp_path / "store") in capsys.readouterr().err


def test_stores_of_other_shards_are_named(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (store / "shard-1").mkdir()
    assert main(["check", str(store), "--json", *SETS]) == 0
    assert str(store / "shard-1") in capsys.readouterr().err


def test_directory_without_a_store_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_unknown_option_is_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(store), "--set=maxIndexNumm=5"]) == 2
    assert "maxIndexNumm" in capsys.readouterr().err


def test_dump_shows_the_records_of_a_topic_in_order(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["dump", str(store), "--json", "--topic", "topic1"]) == 0
    records = json.loads(capsys.readouterr().out)
    wanted = [f"ID{number}" for number in range(COUNT) if number % 2]
    assert [record["properties"]["UNIQ_KEY"] for record in records] == wanted
    assert all(record["topic"] == "topic1" for record in records)


def test_dump_begins_at_the_first_record_behind_an_offset(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["dump", str(store), "--json"])
    everything = json.loads(capsys.readouterr().out)
    for begin in (LOG_FILE - 3, everything[50]["physical_offset"], 1):
        main(["dump", str(store), "--json", "--from", str(begin), "--limit", "2"])
        wanted = [record for record in everything if record["physical_offset"] >= begin][:2]
        assert json.loads(capsys.readouterr().out) == wanted


def test_dump_continues_behind_damage_and_reports_it(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    break_a_header(store)
    assert main(["dump", str(store)]) == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == COUNT - 1
    assert captured.err


def test_dump_of_an_empty_store_is_an_empty_array(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(tmp_path / "store").close()
    assert main(["dump", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("verb", ["check", "dump", "version"])
def test_each_verb_shows_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"\n  aerobee store {verb} data " in capsys.readouterr().out
