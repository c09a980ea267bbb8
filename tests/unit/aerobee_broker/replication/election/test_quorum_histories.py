"""Random histories of replicas whose options change, and differ, while promotions take place, and
whose disks go back in time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aerobee_broker.replication.in_sync.in_sync_set import InSyncSet
from aerobee_broker.replication.in_sync.quorum import Quorum
from aerobee_broker.replication.log.epochs import EpochHistory, promotion_epoch
from aerobee_wire.epochs import PROMOTION_STEP
from support.replication import quorum_model
from support.replication.quorum_model import QuorumModel, play

SEEDS, STEPS = 60, 150


@pytest.mark.parametrize("copies", [3, 4, 5])
def test_no_master_lacks_an_acknowledged_message_whatever_the_options_are(copies: int) -> None:
    played = [play(seed, copies, STEPS) for seed in range(SEEDS)]
    assert sum(len(each.acknowledged) for each in played) > 500
    assert sum(each.promotions for each in played) > 20
    assert sum(each.changes for each in played) > 100
    assert sum(each.went_back for each in played) > 20


def forget_the_quorums(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EpochHistory, "quorums", ())


def acknowledge_before_enough_know_the_change(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(InSyncSet, "_look_at_quorums", lambda self: setattr(self, "_unmet", ()))


def count_whoever_follows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Quorum, "counts", lambda self, replica_id: True)


def rely_on_the_newest_master_at_once(patch: pytest.MonkeyPatch) -> None:
    good = EpochHistory.quorums.fget  # type: ignore[attr-defined]
    patch.setattr(EpochHistory, "quorums", property(lambda self: good(self)[-1:]))


def let_promotions_share_epochs(patch: pytest.MonkeyPatch) -> None:
    """Two at once, of which neither knows of the other: two masters of one epoch."""

    def next_multiple(highest: int, number: int) -> int:
        return promotion_epoch(highest, highest // PROMOTION_STEP + 1)

    patch.setattr(quorum_model, "promotion_epoch", next_multiple)


def record_no_logs(patch: pytest.MonkeyPatch) -> None:
    """A replica with an older copy of its disk counts."""
    patch.setattr(QuorumModel, "_record", lambda self, one: None)


@pytest.mark.parametrize(
    ("mutate", "first_seed"),
    [
        (forget_the_quorums, 0),
        (acknowledge_before_enough_know_the_change, 0),
        (count_whoever_follows, 0),
        (rely_on_the_newest_master_at_once, 150),
        (let_promotions_share_epochs, 80),
        (record_no_logs, 0),
    ],
)
def test_histories_notice_a_defect(
    mutate: Callable[[pytest.MonkeyPatch], None], first_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        play_many(first_seed)


def play_many(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 10 * SEEDS):
        for copies in (3, 4, 5):
            play(seed, copies, STEPS)
