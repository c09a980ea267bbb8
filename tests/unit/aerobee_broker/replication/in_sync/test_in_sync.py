"""The in-sync set of a master, beside the truth about its replicas and the coordinator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.replication.identity import Replica
from aerobee_broker.replication.in_sync.in_sync_set import InSyncRules, InSyncSet
from aerobee_broker.replication.in_sync.quorum import Quorum
from support.replication.in_sync_model import ME, OTHERS, InSyncModel

ONE, TWO, THREE = OTHERS
SYNC_2 = InSyncRules(synchronous=True, in_sync_replicas=2)
AUTO_2 = InSyncRules(synchronous=True, in_sync_replicas=2, auto_in_sync_replicas=True)
ASYNC = InSyncRules()


def begin(rules: InSyncRules, *members: Replica, start: int = 0) -> InSyncModel:
    """A master with these slaves in sync, 10 bytes on all of them."""
    model = InSyncModel(rules, start)
    model.write(10)
    model.sync()
    for replica in members:
        model.follow(replica)
        model.copy(replica, model.end)
        model.report(replica)
    model.begin_change()
    model.end_change(takes_effect=True, answered=True)
    assert model.set.members == {ME, *members}
    return model


def test_a_master_alone_confirms_what_it_has_synced() -> None:
    model = begin(ASYNC)
    model.write(5)
    assert model.set.confirmed == model.set.acknowledged == 10
    model.sync()
    assert model.set.confirmed == model.set.acknowledged == 15


def test_confirmed_is_what_all_of_the_set_have() -> None:
    model = begin(SYNC_2, ONE, TWO)
    model.write(20)
    model.sync()
    model.copy(ONE, 20)
    model.report(ONE)
    assert model.set.confirmed == 10
    model.copy(TWO, 7)
    model.report(TWO)
    assert model.set.confirmed == model.set.acknowledged == 17


def test_an_asynchronous_master_acknowledges_alone_and_shows_with_all() -> None:
    model = begin(ASYNC, ONE)
    model.write(20)
    model.sync()
    assert (model.set.acknowledged, model.set.confirmed) == (30, 10)


def test_an_asynchronous_master_acknowledges_nothing_while_one_that_is_late_may_be_elected() -> (
    None
):
    model = begin(ASYNC, ONE)
    model.write(20)
    model.wait(ASYNC.max_not_caught_up_ms + 1)
    model.sync()
    assert (model.set.acknowledged, model.set.late(model.now_ms)) == (10, [ONE])
    model.begin_change()
    model.end_change(takes_effect=False, answered=False)
    assert model.set.acknowledged == 10, "nobody knows whether it may be elected"
    model.read()
    model.begin_change()
    model.end_change(takes_effect=True, answered=True)
    assert (model.set.acknowledged, model.set.late(model.now_ms)) == (30, [])


def test_an_asynchronous_master_goes_on_when_the_late_one_has_caught_up() -> None:
    model = begin(ASYNC, ONE)
    model.write(20)
    model.wait(ASYNC.max_not_caught_up_ms + 1)
    model.sync()
    model.copy(ONE, 20)
    model.report(ONE)
    assert model.set.acknowledged == 30


def test_a_master_with_too_few_replicas_confirms_and_does_not_acknowledge() -> None:
    model = begin(SYNC_2)
    assert not model.set.suffices
    assert (model.set.acknowledged, model.set.confirmed) == (0, 10)


def test_where_a_person_promotes_too_few_replicas_show_nothing_more() -> None:
    by_hand = replace(SYNC_2, elected=False)
    model = begin(by_hand, ONE)
    model.end_stream(ONE)
    model.begin_change()
    model.end_change(takes_effect=True, answered=True)
    model.write(20)
    model.sync()
    assert (model.set.confirmed, model.set.shown) == (30, 10)
    model.settle()
    assert model.set.shown == 30
    alone = replace(by_hand, auto_in_sync_replicas=True)
    assert begin(alone).set.shown == 10


def test_the_requirement_falls_to_the_set_only_where_that_is_wanted() -> None:
    model = begin(AUTO_2)
    assert model.set.suffices and model.set.required == 1
    assert model.set.acknowledged == 10
    assert begin(AUTO_2, ONE, TWO).set.required == 2
    least = InSyncRules(
        synchronous=True, in_sync_replicas=3, auto_in_sync_replicas=True, min_in_sync_replicas=2
    )
    assert not begin(least).set.suffices


def test_a_master_meets_the_quorums_of_earlier_masters_once() -> None:
    rules = replace(SYNC_2, elected=False, before=(Quorum(4, 3), Quorum(4, 1)))
    model = begin(rules, ONE)
    assert not model.set.suffices and model.set.unmet == Quorum(4, 3)
    assert (model.set.acknowledged, model.set.shown) == (0, 0)
    model = begin(rules, ONE, TWO)
    assert model.set.suffices and model.set.unmet is None
    assert (model.set.acknowledged, model.set.shown) == (10, 10)
    model.end_stream(TWO)
    model.begin_change()
    model.end_change(takes_effect=True, answered=True)
    assert model.set.members == {ME, ONE} and model.set.suffices
    assert begin(replace(rules, elected=True), ONE).set.suffices, "etcd has the set itself"
    given_up = begin(rules, ONE).set
    given_up.give_up_unmet()
    assert given_up.suffices and given_up.acknowledged == 10


def test_an_asynchronous_master_meets_the_quorums_of_earlier_masters_first() -> None:
    rules = replace(ASYNC, elected=False, before=(Quorum(4, 2),))
    assert begin(rules).set.acknowledged == 0
    assert begin(rules, ONE).set.acknowledged == 10


def test_replicas_beyond_the_copies_hold_none() -> None:
    rules = replace(SYNC_2, elected=False, copies=THREE.replica_id)
    model = begin(rules, ONE)
    model.follow(THREE)
    model.copy(THREE, model.end)
    model.report(THREE)
    assert [each.learner for each in model.set.followers()] == [False, True]
    beyond = InSyncSet(THREE, 0, rules)
    beyond.began(ONE, 0, 0)
    beyond.reported(ONE, 0, 0)
    wanted = beyond.next_change(0)
    assert wanted == frozenset({ONE, THREE})
    beyond.change_ended(wanted)
    assert not beyond.suffices, "of its two copies one counts"


def test_a_replica_that_joins_is_waited_for_before_the_set_is_written() -> None:
    model = begin(ASYNC)
    model.follow(ONE)
    model.copy(ONE, 10)
    model.report(ONE)
    model.begin_change()
    assert ONE in model.set.waited_for and ONE not in model.set.members
    model.write(5)
    model.sync()
    assert model.set.confirmed == 10


def test_under_load_confirm_stands_still_until_a_joining_replica_has_it() -> None:
    model = begin(ASYNC)
    model.follow(ONE)
    model.wait(30)
    model.write(5)  # it had 10 until now
    model.sync()
    model.copy(ONE, 10)
    model.report(ONE)
    model.begin_change()
    assert model.writing is None and ONE in model.set.waited_for
    model.write(5)
    model.sync()
    assert model.set.confirmed == 15
    model.copy(ONE, 5)
    model.report(ONE)
    model.begin_change()
    assert model.writing == frozenset({ME, ONE})


def test_a_replica_that_never_comes_up_is_not_waited_for_any_longer() -> None:
    model = begin(ASYNC)
    model.follow(ONE)
    model.wait(30)
    model.write(5)
    model.sync()
    model.copy(ONE, 10)
    model.report(ONE)
    model.begin_change()
    assert ONE in model.set.waited_for
    model.wait(ASYNC.max_not_caught_up_ms + 100)
    model.write(5)
    model.sync()
    model.begin_change()
    assert ONE not in model.set.waited_for
    assert model.set.confirmed == 20


def test_a_replica_far_behind_is_not_waited_for() -> None:
    model = begin(ASYNC)
    model.wait(600)
    model.follow(ONE)
    model.copy(ONE, 3)
    model.report(ONE)
    model.begin_change()
    assert ONE not in model.set.waited_for


def test_a_replica_without_the_start_of_the_epoch_does_not_join() -> None:
    model = InSyncModel(ASYNC, start=100)
    model.follow(ONE)
    model.copy(ONE, 99)
    model.report(ONE)
    model.begin_change()
    assert model.set.waited_for == {ME}
    model.copy(ONE, 1)
    model.report(ONE)
    model.begin_change()
    assert model.writing == frozenset({ME, ONE})


def test_a_replica_that_leaves_is_waited_for_until_the_set_is_written() -> None:
    model = begin(AUTO_2, ONE)
    model.end_stream(ONE)
    model.write(5)
    model.sync()
    assert model.set.confirmed == 10
    model.begin_change()
    assert model.set.confirmed == 10
    model.end_change(takes_effect=True, answered=True)
    assert model.set.confirmed == model.set.acknowledged == 15


def test_a_silent_replica_leaves_after_its_time() -> None:
    model = begin(ASYNC, ONE)
    model.wait(ASYNC.max_not_caught_up_ms)
    model.begin_change()
    assert model.writing is None
    model.wait(1)
    model.begin_change()
    assert model.writing == frozenset({ME})


def test_a_master_knows_since_when_one_of_the_set_is_silent() -> None:
    """Whoever is not heard of may have been elected; who is not in the set may not."""
    assert begin(SYNC_2).set.heard_of_all_ms() is None, "it is the whole set"
    model = begin(SYNC_2, ONE, TWO)
    model.follow(THREE)
    model.wait(700)
    model.report(ONE)
    joined_ms = model.set.heard_of_all_ms()
    assert joined_ms is not None and joined_ms <= model.now_ms - 700
    model.report(TWO)
    assert model.set.heard_of_all_ms() == model.now_ms
    model.wait(300)
    model.end_stream(ONE)
    assert model.set.heard_of_all_ms() == model.now_ms - 300


def test_a_stream_that_begins_again_and_again_does_not_hold_confirm_for_ever() -> None:
    model = begin(ASYNC, ONE)
    model.write(5)
    model.sync()
    for _ in range(6):
        model.wait(400)
        model.end_stream(ONE)
        model.follow(ONE)
        model.report(ONE)
    model.begin_change()
    assert model.writing == frozenset({ME})


@pytest.mark.parametrize("takes_effect", [True, False])
@pytest.mark.parametrize("joins", [True, False])
def test_an_unknown_outcome_counts_as_both(takes_effect: bool, joins: bool) -> None:
    model = begin(AUTO_2) if joins else begin(AUTO_2, ONE)
    if joins:
        model.follow(ONE)
        model.copy(ONE, 10)
        model.report(ONE)
    else:
        model.end_stream(ONE)
    model.begin_change()
    model.end_change(takes_effect=takes_effect, answered=False)
    assert model.set.is_unresolved
    assert model.set.waited_for == {ME, ONE}
    assert model.set.members == {ME}
    assert model.set.next_change(model.now_ms) is None
    model.read()
    assert model.set.members == model.at_coordinator
    assert (ONE in model.set.members) == (takes_effect == joins)


def test_a_set_that_another_master_wrote_is_refused() -> None:
    model = begin(ASYNC, ONE)
    for members in ((ONE,), (ME, ONE, TWO), (ME,)):
        with pytest.raises(ValueError):
            model.set.change_ended(members)


def test_a_learner_and_a_log_that_begins_later_do_not_join() -> None:
    in_sync = InSyncSet(ME, 0, ASYNC)
    in_sync.stored(0, 10, 10, 0)
    in_sync.began(ONE, 0, 0, learner=True)
    in_sync.began(TWO, 5, 5)
    for replica in (ONE, TWO):
        in_sync.reported(replica, 10, 0)
    assert in_sync.next_change(0) is None
    in_sync.stored(5, 10, 10, 0)
    assert in_sync.next_change(0) == frozenset({ME, TWO})


def test_an_empty_disk_under_an_old_number_is_another_replica() -> None:
    model = begin(ASYNC, ONE)
    model.end_stream(ONE)
    model.set.began(Replica(ONE.replica_id, "new"), 0, 0)
    model.begin_change()
    assert model.writing == frozenset({ME})


def test_log_files_are_kept_for_who_follows_unless_it_is_too_far_behind() -> None:
    model = begin(InSyncRules(max_gap=100), ONE)
    model.write(50)
    model.sync()
    assert model.set.needed_from() == 10
    model.set.began(TWO, 0, 30)
    model.copy(ONE, 40)
    model.report(ONE)
    assert model.set.needed_from() == 30
    model.write(90)
    model.sync()
    assert model.set.needed_from() == 50
    model.write(10)
    assert model.set.needed_from() == 150


RULES = st.builds(
    InSyncRules,
    synchronous=st.booleans(),
    elected=st.booleans(),
    in_sync_replicas=st.integers(1, 3),
    auto_in_sync_replicas=st.booleans(),
    min_in_sync_replicas=st.integers(1, 2),
)
STEPS = st.one_of(
    st.builds(lambda count: lambda model: model.write(count), st.integers(1, 9)),
    st.just(InSyncModel.sync),
    st.builds(lambda ms: lambda model: model.wait(ms), st.sampled_from((1, 30, 400, 2_500))),
    st.builds(lambda r: lambda model: model.follow(r), st.sampled_from(OTHERS)),
    st.builds(
        lambda r, count: lambda model: model.copy(r, count),
        st.sampled_from(OTHERS),
        st.integers(1, 9),
    ),
    st.builds(lambda r: lambda model: model.report(r), st.sampled_from(OTHERS)),
    st.builds(lambda r: lambda model: model.end_stream(r), st.sampled_from(OTHERS)),
    st.just(InSyncModel.begin_change),
    st.builds(
        lambda effect, answered: (
            lambda model: model.end_change(takes_effect=effect, answered=answered)
        ),
        st.booleans(),
        st.booleans(),
    ),
    st.just(InSyncModel.read),
)


@given(RULES, st.lists(STEPS, max_size=80))
def test_whatever_happens_the_rules_hold_and_in_the_end_all_are_in_sync(
    rules: InSyncRules, steps: list[Callable[[InSyncModel], None]]
) -> None:
    model = InSyncModel(rules)
    for step in steps:
        step(model)
    model.settle()
    assert model.set.members == {ME, *OTHERS}
    assert model.set.confirmed == model.set.acknowledged == model.set.shown == model.end


def test_a_member_that_reconnects_with_a_shorter_log_counts_from_where_it_begins() -> None:
    replica = Replica(1, "s")
    members = InSyncSet(Replica(0, "m"), 0, InSyncRules(synchronous=True))
    members.stored(0, 100, 100, 1)
    members.began(replica, 0, 100)
    members.reported(replica, 100, 1)
    members.change_ended(members.next_change(1))
    assert members.confirmed == 100
    members.ended(replica)
    members.stored(0, 200, 200, 2)

    members.began(replica, 0, 40)  # its disk went back in time
    members.reported(replica, 60, 3)

    assert members.needed_from() == 60
    assert members.confirmed == 100
    members.reported(replica, 200, 4)
    assert members.confirmed == 200
