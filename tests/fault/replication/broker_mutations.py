"""Mutations that scenarios of whole brokers must notice: of promotions, and of what an unclean one
gives up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from aerobee_broker.delivery.pull.offsets import OffsetQueries, QueueOffset
from aerobee_broker.delivery.standby import WarmLeases
from aerobee_broker.replication.election import electability, manual_failover
from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.in_sync_set import InSyncRules, InSyncSet
from aerobee_broker.replication.log.status import ReplicaStatus
from fault.replication import scenarios, unclean


def promote_whoever_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manual_failover, "check_enough", lambda own, others, options: None)


def count_an_empty_disk(patch: pytest.MonkeyPatch) -> None:
    def counts(found: ReplicaStatus) -> bool:
        return not (found.copying or found.learner)

    patch.setattr(electability, "_has_what_it_confirmed", counts)
    # An empty disk has no epoch in common with another one either.
    patch.setattr(electability, "related", lambda own, found: list(found))


def promote_to_the_next_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(manual_failover, "promotion_epoch", lambda highest, number: highest + 1)


def show_what_a_promotion_may_take_back(patch: pytest.MonkeyPatch) -> None:
    """Without etcd the set does not say who may become master."""
    good = InSyncSet.__init__

    def begin(self: InSyncSet, me: Replica, start: int, rules: InSyncRules) -> None:
        good(self, me, start, replace(rules, elected=True))

    patch.setattr(InSyncSet, "__init__", begin)


PROMOTIONS = (
    (promote_whoever_answers, scenarios.promote_one_that_was_away),
    (count_an_empty_disk, scenarios.promote_beside_an_empty_disk),
    (promote_to_the_next_epoch, scenarios.start_an_old_master_alone),
    (show_what_a_promotion_may_take_back, scenarios.promote_beside_an_isolated_master),
)


# ---- unclean promotions, of whole brokers ----


def keep_offsets_beyond_the_end(patch: pytest.MonkeyPatch) -> None:
    def update(
        self: OffsetQueries, consumer_group: str, offsets: Iterable[QueueOffset], **_: object
    ) -> list[QueueOffset]:
        for each in offsets:
            self.offsets.commit(consumer_group, each.topic, each.queue_id, each.queue_offset)
        return []

    patch.setattr(OffsetQueries, "update", update)


def keep_the_leases_of_a_log_that_was_cut(patch: pytest.MonkeyPatch) -> None:
    """And not take those of the master."""
    patch.setattr(WarmLeases, "take", lambda self, content: None)


UNCLEAN = (
    (keep_offsets_beyond_the_end, unclean.commit_what_was_given_up),
    (keep_the_leases_of_a_log_that_was_cut, unclean.lease_what_was_given_up),
)
