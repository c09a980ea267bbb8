"""The access table: merging, tombstones, changes, and its file."""

from __future__ import annotations

import errno
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_wire import files
from aerobee_wire.access import table_file
from aerobee_wire.access.policies import policy
from aerobee_wire.access.table import (
    HORIZON_MS,
    MAX_DELETED_USERS,
    AccessTable,
    Record,
    UserPolicy,
    Version,
    tombstone,
)
from aerobee_wire.access.users import User
from aerobee_wire.files import NotSynced
from aerobee_wire.status import MqError

NOW_MS = 1_800_000_000_000
ADMIN = User("admin", (b"root",), super=True)
APP = User("app", (b"s3cret",))

versions = st.builds(Version, st.integers(0, 3), st.sampled_from("ab"))
users = st.builds(
    User,
    st.sampled_from(["x", "y"]),
    st.tuples(st.sampled_from([b"1", b"2"])),
    enabled=st.booleans(),
    super=st.booleans(),
)
policies = st.builds(
    UserPolicy,
    st.sampled_from(["x", "y"]),
    st.builds(
        policy,
        st.sampled_from(["Topic:a", "*"]),
        st.sampled_from([["Pub"], ["Sub"]]),
        source_ips=st.sampled_from([[], ["10.0.0.0/8"]]),
    ),
)
items = users | policies
records = st.builds(Record, items, versions) | st.builds(tombstone, items, versions)
tables = st.lists(records, max_size=8)


def content(*parts: Sequence[Record]) -> dict[object, Record]:
    table = AccessTable()
    for part in parts:
        table.merge(part)
    return {record.key: record for record in table.records()}


@given(tables, tables, tables)
def test_merge_is_commutative_associative_and_idempotent(
    a: list[Record], b: list[Record], c: list[Record]
) -> None:
    assert content(a, b) == content(b, a)
    ab, bc = AccessTable([*a, *b]), AccessTable([*b, *c])
    assert content(ab.records(), c) == content(a, bc.records())
    assert content(a, a) == content(a)
    assert content(a + b + c) == content(c[::-1] + b[::-1] + a[::-1])


@given(tables, tables)
def test_merge_returns_the_records_that_changed_the_table(a: list[Record], b: list[Record]) -> None:
    table = AccessTable(a)
    before = {record.key: record for record in table.records()}
    newer = table.newer(b)
    taken = table.merge(b)
    after = {record.key: record for record in table.records()}
    assert {r.key: r for r in taken} == {k: r for k, r in after.items() if before.get(k) != r}
    assert {r.key for r in newer} == {r.key for r in taken}
    assert table.merge(b) == []


def encoded(records: Iterable[Record]) -> bytes:
    return table_file.joined(map(table_file.encode_record, records), NOW_MS)


@given(tables)
def test_file_keeps_all_records(a: list[Record]) -> None:
    table = AccessTable(a)
    found = table_file.decode(encoded(table.records()))
    assert content(found.records) == content(a) and found.current_ms == NOW_MS


@pytest.fixture
def table() -> AccessTable:
    return AccessTable()


def change(
    table: AccessTable,
    *put: User | UserPolicy,
    delete: Sequence[User | UserPolicy] = (),
    now_ms: int = NOW_MS,
) -> list[Record]:
    return table.merge(table.changes(put, delete, now_ms=now_ms, node="n"))


def test_user_has_its_policies(table: AccessTable) -> None:
    orders = policy("Topic:orders", ["Pub"])
    change(table, UserPolicy("app", orders))
    assert table.user("app") is None and table.subjects() == ["app"]
    change(table, APP)
    assert table.user("app") == User("app", (b"s3cret",), policies=(orders,))
    change(table, delete=[UserPolicy("app", orders)])
    assert table.user("app") == APP
    change(table, delete=[APP])
    assert table.user("app") is None and table.subjects() == [] and list(table.users()) == []


def test_change_wins_over_a_record_from_a_clock_that_is_ahead(table: AccessTable) -> None:
    change(table, APP, now_ms=NOW_MS + 60_000)
    assert change(table, User("app", (b"new",)), now_ms=NOW_MS)
    found = table.user("app")
    assert found is not None and found.secrets == (b"new",)


def test_older_copy_does_not_restore_a_deleted_user(table: AccessTable) -> None:
    old = change(table, APP)
    change(table, delete=[APP], now_ms=NOW_MS + 1)
    assert table.merge(old) == [] and table.user("app") is None


def test_tombstone_has_no_secret_and_expires_after_the_horizon(table: AccessTable) -> None:
    right = UserPolicy("app", policy("Topic:a", ["Pub"]))
    change(table, APP, right)
    change(table, delete=[APP, right])
    assert b"s3cret" not in encoded(table.records())
    assert table.purge(NOW_MS + HORIZON_MS) == 0 and len(table) == 2
    assert table.purge(NOW_MS + HORIZON_MS + 2) == 1
    assert [each.key for each in table.records()] == [("user", "app")], "a user's remains"


def test_tombstones_of_users_are_bounded_and_those_of_super_users_remain(
    table: AccessTable,
) -> None:
    change(table, ADMIN, User("root", (b"root",), super=True))
    change(table, delete=[ADMIN], now_ms=NOW_MS + 1)
    for number in range(MAX_DELETED_USERS + 9):
        change(table, User(f"u{number}", (b"x",)))
        change(table, delete=[User(f"u{number}", (b"x",))], now_ms=NOW_MS + 2 + number)
    assert table.purge(NOW_MS + 2 * HORIZON_MS) == 10
    left = [record.key[1] for record in table.records() if record.deleted]
    assert len(left) == MAX_DELETED_USERS and {"admin", "u10"} <= {*left} and "u9" not in left


@pytest.mark.parametrize(
    "change_of_admin",
    [
        {"delete": [ADMIN]},
        {"put": [User("admin", (b"root",), enabled=False, super=True)]},
        {"put": [User("admin", (b"root",))]},
    ],
)
def test_last_enabled_super_user_stays(
    table: AccessTable, change_of_admin: dict[str, list[User]]
) -> None:
    change(table, ADMIN, User("off", (b"x",), enabled=False, super=True), APP)
    with pytest.raises(MqError, match="last enabled SUPER"):
        table.changes(**change_of_admin, now_ms=NOW_MS, node="n")
    change(table, User("other", (b"x",), super=True))
    assert table.changes(**change_of_admin, now_ms=NOW_MS, node="n")


def test_file_is_private_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "access.json"
    file.with_name("access.json.tmp").write_text("of a crash")
    table_file.replace_private(file, encoded([Record(APP, Version(1, "n"))]))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["access.json"]
    damaged = file.read_bytes().replace(b"s3cret", b"S3cret")
    with pytest.raises(ValueError, match="checksum") as caught:
        table_file.decode(damaged)
    assert "cret" not in str(caught.value)


def test_failed_sync_of_the_directory_differs_from_a_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(directory: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(files, "sync_directory", fail)
    file = tmp_path / "access.json"
    with pytest.raises(NotSynced, match="Input/output error"):
        table_file.replace_private(file, b"new")
    assert file.read_bytes() == b"new"


def test_repr_of_a_record_has_no_secret() -> None:
    assert "s3cret" not in repr(Record(APP, Version(1, "n")))
