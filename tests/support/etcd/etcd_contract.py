"""What brokers rely on in etcd, as tests: they hold for the real one and for the simulated one.

A subclass of `EtcdContract` gives the fixture `etcd`, a client; keys of one test are its own.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from aerobee_broker.replication.election.coordinators.etcd import (
    Delete,
    Etcd,
    EtcdRefused,
    KeyValue,
    LeaseGone,
    Put,
    Unchanged,
    WatchCompacted,
)
from support.clock.polling import until

_numbers = itertools.count()


@pytest.fixture
def prefix() -> str:
    """Of the keys of one test."""
    return f"/test/{next(_numbers)}/"


class EtcdContract:
    async def test_a_prefix_that_holds_nothing_is_read_as_empty(
        self, etcd: Etcd, prefix: str
    ) -> None:
        assert (await etcd.read(prefix)).items == ()

    async def test_what_is_put_is_read_with_the_revision_of_its_last_put(
        self, etcd: Etcd, prefix: str
    ) -> None:
        first = await etcd.write([], [Put(prefix + "b", b"1"), Put(prefix + "a", b"2")])
        second = await etcd.write([], [Put(prefix + "b", b"3")])
        assert first is not None and second is not None and second > first

        snapshot = await etcd.read(prefix)

        assert snapshot.revision == second
        assert snapshot.items == (
            KeyValue(prefix + "a", b"2", first),
            KeyValue(prefix + "b", b"3", second),
        )

    async def test_a_prefix_ends_before_its_neighbours(self, etcd: Etcd, prefix: str) -> None:
        await etcd.write([], [Put(prefix[:-1] + "0", b""), Put(prefix[:-1] + ".", b"")])
        await etcd.write([], [Put(prefix + "x", b"")])
        assert [item.key for item in (await etcd.read(prefix)).items] == [prefix + "x"]

    async def test_a_write_happens_only_if_each_key_is_unchanged(
        self, etcd: Etcd, prefix: str
    ) -> None:
        key, other = prefix + "key", prefix + "other"
        revision = await etcd.write([Unchanged(key, 0), Unchanged(other, 0)], [Put(key, b"1")])
        assert revision is not None

        both = [Unchanged(other, 0), Unchanged(key, 0)]
        assert await etcd.write(both, [Put(key, b"2"), Put(other, b"2")]) is None
        assert [item.value for item in (await etcd.read(prefix)).items] == [b"1"]
        assert await etcd.write([Unchanged(key, revision)], [Put(key, b"3")])
        assert await etcd.write([Unchanged(key, revision)], [Put(key, b"4")]) is None

    async def test_a_deleted_key_has_revision_0_again(self, etcd: Etcd, prefix: str) -> None:
        key = prefix + "key"
        await etcd.write([], [Put(key, b"1")])
        await etcd.write([], [Delete(key)])
        assert await etcd.write([Unchanged(key, 0)], [Put(key, b"2")])

    async def test_a_key_that_is_written_twice_is_refused(self, etcd: Etcd, prefix: str) -> None:
        with pytest.raises(EtcdRefused):
            await etcd.write([], [Put(prefix + "a", b"1"), Put(prefix + "a", b"2")])
        assert (await etcd.read(prefix)).items == ()

    async def test_keys_end_with_their_lease(self, etcd: Etcd, prefix: str) -> None:
        lease = await etcd.grant(60)
        await etcd.write([], [Put(prefix + "leased", b"", lease), Put(prefix + "stays", b"")])
        await etcd.keep_alive(lease)

        await etcd.revoke(lease)

        assert [item.key for item in (await etcd.read(prefix)).items] == [prefix + "stays"]
        with pytest.raises(LeaseGone):
            await etcd.keep_alive(lease)
        with pytest.raises(LeaseGone):
            await etcd.write([], [Put(prefix + "late", b"", lease)])
        await etcd.revoke(lease)

    async def test_a_key_that_is_put_under_another_lease_outlives_the_first(
        self, etcd: Etcd, prefix: str
    ) -> None:
        key, first, second = prefix + "key", await etcd.grant(60), await etcd.grant(60)
        await etcd.write([], [Put(key, b"1", first)])
        await etcd.write([], [Put(key, b"2", second)])

        await etcd.revoke(first)

        assert [item.value for item in (await etcd.read(prefix)).items] == [b"2"]

    async def test_a_lease_that_nobody_renews_ends(self, etcd: Etcd, prefix: str) -> None:
        lease = await etcd.grant(2)
        await etcd.write([], [Put(prefix + "key", b"", lease)])

        async def gone() -> bool:
            return not (await etcd.read(prefix)).items

        await until(gone, timeout_s=60)

    async def test_a_watch_reports_changes_from_a_revision_on(
        self, etcd: Etcd, prefix: str
    ) -> None:
        before = await etcd.write([], [Put(prefix + "a", b"1")])
        assert before is not None
        changes = [
            await etcd.write([], [Put(prefix + "b", b"1")]),
            await etcd.write([], [Delete(prefix + "a")]),
        ]
        await etcd.write([], [Put(prefix[:-1] + "elsewhere", b"")])
        lease = await etcd.grant(60)
        changes.append(await etcd.write([], [Put(prefix + "c", b"", lease)]))
        watch = etcd.watch(prefix, before + 1)
        try:
            async with asyncio.timeout(30):
                seen = await anext(watch)
                while seen != changes[-1]:
                    assert seen in changes
                    seen = await anext(watch)
                await etcd.revoke(lease)
                assert await anext(watch) > seen
        finally:
            await watch.aclose()


class EtcdThatForgets:
    """Beside the contract: what happens once `compact` has made etcd forget what was."""

    async def test_a_watch_from_a_forgotten_revision_is_refused(
        self, etcd: Etcd, prefix: str
    ) -> None:
        first = await etcd.write([], [Put(prefix + "a", b"1")])
        await etcd.write([], [Put(prefix + "a", b"2")])
        assert first is not None
        await self.compact()
        watch = etcd.watch(prefix, first)
        try:
            with pytest.raises(WatchCompacted):
                async with asyncio.timeout(30):
                    await anext(watch)
        finally:
            await watch.aclose()

    async def compact(self) -> None:
        raise NotImplementedError
