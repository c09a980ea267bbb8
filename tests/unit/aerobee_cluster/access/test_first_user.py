"""The first user of a cluster: created while there is none, and older than any other record."""

from __future__ import annotations

from pathlib import Path

import pytest

from aerobee_cluster.access.first_user import OPTION, read_first_user
from aerobee_cluster.access.store import AccessStore
from aerobee_wire.access.table import HORIZON_MS, Record, Version, tombstone
from aerobee_wire.access.users import User
from aerobee_wire.status import Code
from support.codes import raises_code

JSON = '{"username": "admin", "password": "s3cret"}'
NOW_MS = 2 * HORIZON_MS
ROOT = User("admin", (b"s3cret",), super=True)


def store() -> AccessStore:
    return AccessStore("n", lambda: NOW_MS)


def test_the_option_is_json_or_names_a_file(tmp_path: Path) -> None:
    file = tmp_path / "first.json"
    file.write_text(JSON + "\n")
    assert read_first_user(JSON) == read_first_user(f"@{file}") == ROOT
    assert read_first_user("") is None


@pytest.mark.parametrize("text", ["@missing", "s3cret", '{"password": "s3cret"}', "[]"])
def test_errors_do_not_contain_the_password(text: str) -> None:
    with raises_code(Code.INVALID_PARAMETER, OPTION) as caught:
        read_first_user(text)
    assert "s3cret" not in caught.value.message


async def test_it_is_created_only_while_there_is_no_user() -> None:
    table = store()
    assert await table.create_first(ROOT)
    assert table.user("admin") == ROOT
    assert not await table.create_first(User("another", (b"x",), super=True))


async def test_each_other_record_of_its_name_is_newer() -> None:
    """A server with an empty disk does not restore what the cluster has changed or deleted."""
    changed = Record(User("admin", (b"n3w",)), Version(NOW_MS - HORIZON_MS, "a"))
    for record in (changed, tombstone(ROOT, Version(NOW_MS, "a"))):
        table = store()
        await table.create_first(ROOT)
        await table.merge([record])
        assert table.table.get(record.key) == record
        assert await table.create_first(ROOT) is False


async def test_a_table_with_only_a_first_user_does_not_replace_others() -> None:
    table = store()
    await table.create_first(ROOT)
    assert table.is_stale
    await table.merge([Record(User("app", (b"x",)), Version(NOW_MS, "a"))])
    assert not table.is_stale


@pytest.mark.parametrize("changed", [False, True], ids=["as-created", "changed-before"])
async def test_a_deleted_first_user_does_not_come_back_from_an_empty_disk(changed: bool) -> None:
    """A name server that starts a year later creates the user again, and the cluster deletes it."""
    now_ms = NOW_MS
    cluster = AccessStore("a", lambda: now_ms)
    await cluster.create_first(ROOT)
    other = User("other", (b"x",), super=True)
    put = [other, User("admin", (b"n3w",))] if changed else [other]
    await cluster.change(lambda table, at_ms, node: table.changes(put, now_ms=at_ms, node=node))
    await cluster.change(
        lambda table, at_ms, node: table.changes(
            delete=[user for user in table.users() if user.name == "admin"],
            now_ms=at_ms,
            node=node,
        )
    )
    now_ms += 12 * HORIZON_MS
    await cluster.keep_current()
    empty = AccessStore("b", lambda: now_ms)
    assert await empty.create_first(ROOT)
    await cluster.merge(empty.table.records(), complete=True, stale=empty.is_stale)
    await empty.merge(cluster.table.records(), complete=True, stale=cluster.is_stale)
    assert cluster.user("admin") is None and empty.user("admin") is None
    assert empty.user("other") == other
