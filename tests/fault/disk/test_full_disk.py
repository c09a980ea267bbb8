"""F7: there is no room left, at any byte. The error says so, nothing half-written is ever served,
reading goes on, and so does writing once there is room.
"""

from __future__ import annotations

from aerobee_broker.errors import DiskFull
from fault.conftest import Campaign
from fault.history import History
from support.codes import raises_about
from support.disk.stores import SMALL, visible


def filled(room: int) -> History:
    """A history whose disk has so many bytes left after the first messages."""
    history = History(11, SMALL)
    history.open()
    history.append()
    history.flush()
    history.disk.capacity = history.disk.used_bytes() + room
    return history


def test_sends_are_refused_while_the_disk_is_full_only(campaign: Campaign) -> None:
    refused = 0
    for room in range(0, 40_000, 512 if campaign.long else 2_048):
        history = filled(room)
        store = history.store
        assert store is not None
        for _ in range(30):
            try:
                store.append([history.message() for _ in range(3)])
                store.flush.write()
            except DiskFull:
                refused += 1
                before = visible(store)
                break
            store.flush.confirm(store.flush.sync())
            store.maintain(history.clock.now_ms())
        else:
            before = visible(store)
        assert not store.flush.read_only_reason
        history.disk.capacity = None
        history.clock.advance(60_000)
        store.maintain(history.clock.now_ms())
        history.append()
        history.flush()
        after = visible(store)
        for queue, messages in before.items():
            assert messages.items() <= after[queue].items()
        assert sum(map(len, after.values())) > sum(map(len, before.values()))
        history.kill()
        history.open()
        assert visible(history.store) == after  # type: ignore[arg-type]
    assert refused
    campaign.report(f"refused {refused} times, 0 messages lost")


def test_error_names_the_file() -> None:
    history = filled(0)
    assert history.store is not None
    store = history.store

    def fill() -> None:
        for _ in range(20):
            store.append([history.message()])
            store.flush.write()

    with raises_about(DiskFull, f"commitlog/{0:020d}"):
        fill()
