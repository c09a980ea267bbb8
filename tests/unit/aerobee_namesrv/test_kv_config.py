"""The key-value configuration: facts §1.7, and what its file survives."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from aerobee_chassis.errors import StartError
from aerobee_namesrv.kv_config import KVConfigManager
from aerobee_wire.checked_json import decode
from aerobee_wire.files import NotSynced, replace_file
from aerobee_wire.status import Code, MqError
from support.codes import raises_about, raises_code


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namesrv" / "kvConfig.json"


@pytest.fixture
def kv(path: Path) -> Iterator[KVConfigManager]:
    manager = KVConfigManager(path)
    manager.open()
    yield manager
    manager.close()


def reopened(path: Path) -> KVConfigManager:
    manager = KVConfigManager(path)
    manager.open()
    manager.close()
    return manager


def test_file_has_rocketmqs_shape(kv: KVConfigManager, path: Path) -> None:
    kv.put("ORDER_TOPIC_CONFIG", "orders", "broker-a:4;broker-b:4")
    assert decode(path.read_bytes()) == {
        "configTable": {"ORDER_TOPIC_CONFIG": {"orders": "broker-a:4;broker-b:4"}}
    }
    assert kv.order_topic_config() == {"orders": "broker-a:4;broker-b:4"}


def test_what_was_put_is_there_after_a_restart(kv: KVConfigManager, path: Path) -> None:
    kv.put("ns", "k", "v")
    kv.put("ns", "größe", "100 €")
    kv.put("ns", "gone", "x")
    kv.delete("ns", "gone")
    kv.close()
    assert reopened(path).entries("ns") == {"k": "v", "größe": "100 €"}


def test_file_of_rocketmq_is_read(path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.write_text('{\n\t"configTable":{\n\t\t"ns":{\n\t\t\t"k":"v"\n\t\t}\n\t}\n}')
    assert reopened(path).get("ns", "k") == "v"


def test_missing_key_and_missing_namespace_are_not_found(kv: KVConfigManager) -> None:
    """§1.7: QUERY_NOT_FOUND (22)."""
    kv.put("ns", "k", "v")
    for ask in (lambda: kv.get("ns", "x"), lambda: kv.get("x", "k"), lambda: kv.entries("x")):
        with raises_code(Code.QUERY_NOT_FOUND):
            ask()
    assert kv.order_topic_config() == {}


def test_missing_key_is_deleted_without_a_word(kv: KVConfigManager, path: Path) -> None:
    kv.delete("ns", "k")
    assert not path.exists()


def test_namespace_stays_when_its_last_key_goes(kv: KVConfigManager) -> None:
    kv.put("ns", "k", "v")
    kv.delete("ns", "k")
    assert kv.entries("ns") == {}


def test_backup_has_the_content_before_the_last_change(kv: KVConfigManager, path: Path) -> None:
    """§1.7: old content to .bak first."""
    kv.put("ns", "k", "old")
    kv.put("ns", "k", "new")
    backup = path.with_name("kvConfig.json.bak").read_bytes()
    assert decode(backup) == {"configTable": {"ns": {"k": "old"}}}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"configTable": {"ns": {"k": "v"',
        "[]",
        '{"configTable": {"ns": {"k": 1}}}',
        "\xff",
    ],
)
def test_backup_is_loaded_when_the_file_is_broken(
    kv: KVConfigManager, path: Path, content: str
) -> None:
    kv.put("ns", "k", "old")
    kv.put("ns", "k", "new")
    kv.close()
    path.write_text(content, encoding="latin-1")
    with structlog.testing.capture_logs() as logs:
        assert reopened(path).get("ns", "k") == "old"
    assert [line["log_level"] for line in logs] == ["warning"]


def test_a_flipped_bit_makes_no_other_value(kv: KVConfigManager, path: Path) -> None:
    kv.put("ns", "k", "old")
    kv.put("ns", "k", "new")
    kv.close()
    path.write_bytes(path.read_bytes().replace(b"new", b"nev"))
    assert reopened(path).get("ns", "k") == "old"


def test_broken_file_does_not_replace_the_backup(kv: KVConfigManager, path: Path) -> None:
    kv.put("ns", "k", "old")
    kv.put("ns", "k", "new")
    kv.close()
    path.write_text("{")
    again = KVConfigManager(path)
    again.open()
    again.put("ns", "other", "x")
    again.close()
    path.write_text("{")
    assert reopened(path).entries("ns") == {"k": "old"}


def test_start_is_refused_when_both_files_are_broken(kv: KVConfigManager, path: Path) -> None:
    kv.put("ns", "k", "v")
    kv.close()
    for broken in (path, path.with_name("kvConfig.json.bak")):
        broken.write_text("{")
    with raises_about(StartError, str(path)):
        reopened(path)


def test_two_name_servers_do_not_share_a_file(kv: KVConfigManager, path: Path) -> None:
    with raises_about(StartError, "--data"):
        reopened(path)
    kv.close()
    reopened(path)


def test_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with raises_about(StartError, str(tmp_path / "file" / "kvConfig.json")):
        reopened(tmp_path / "file" / "kvConfig.json")


@pytest.mark.parametrize("fails_at", [0, 1])
def test_failed_write_changes_nothing_and_is_reported(path: Path, fails_at: int) -> None:
    """The disk is full at write number `fails_at` of a change: the backup's, the file's."""
    writes = iter(range(4))

    def replace(target: Path, content: bytes) -> None:
        if next(writes) == 2 + fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace_file(target, content)

    manager = KVConfigManager(path, replace)
    manager.open()
    manager.put("ns", "k", "old")
    with pytest.raises(MqError) as caught:
        manager.put("ns", "k", "new")
    manager.close()
    assert (caught.value.code, caught.value.retryable) == (Code.SYSTEM_ERROR, True)
    assert manager.get("ns", "k") == "old"
    assert reopened(path).get("ns", "k") == "old"


@pytest.mark.parametrize("fails_at", [0, 1])
def test_error_of_an_unsynced_directory_states_whether_the_file_has_changed(
    path: Path, fails_at: int
) -> None:
    writes = iter(range(4))

    def replace(target: Path, content: bytes) -> None:
        replace_file(target, content)
        if next(writes) == 2 + fails_at:
            raise NotSynced(errno.EIO, "Input/output error")

    manager = KVConfigManager(path, replace)
    manager.open()
    manager.put("ns", "k", "old")
    with pytest.raises(MqError) as caught:
        manager.put("ns", "k", "new")
    manager.close()
    assert ("nothing was changed" in caught.value.message) == (fails_at == 0)
    assert reopened(path).get("ns", "k") == ("old" if fails_at == 0 else "new")


def test_leftover_of_a_crash_in_the_middle_of_a_write_is_ignored(
    kv: KVConfigManager, path: Path
) -> None:
    kv.put("ns", "k", "v")
    kv.close()
    path.with_name("kvConfig.json.tmp").write_text('{"configTable": {"ns"')
    again = KVConfigManager(path)
    again.open()
    again.put("ns", "k", "next")
    again.close()
    assert reopened(path).get("ns", "k") == "next"
