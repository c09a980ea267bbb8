"""F2: one scripted history, and a crash in every single call that changes the disk, also in those
of the recovery. The process dies, or the power goes.
"""

from __future__ import annotations

import pytest

from fault.conftest import Campaign
from fault.history import History
from support.disk.simulated_disk import PowerCut
from support.disk.stores import SMALL, reporting


def scenario(history: History) -> None:
    """Two and a half files of log, several checkpoints, one clean restart."""
    history.open()
    for step in range(22):
        history.append()
        history.append()
        history.flush()
        if step % 4 == 3:
            history.clock.advance(5_000)
            assert history.store is not None
            history.store.maintain(history.clock.now_ms())
            while history.store.maintain_files():
                pass
        if step == 15:
            history.restart()


def whole(seed: int) -> History:
    history = History(seed, SMALL)
    scenario(history)
    return history


def crashed(seed: int, crash_at: int) -> History:
    history = History(seed, SMALL)
    history.disk.crash_at = crash_at
    try:
        scenario(history)
    except PowerCut:
        history.power_cuts += 1
    return history


def test_the_scenario_rolls_files_and_takes_checkpoints() -> None:
    history = whole(1)
    names = [path.name for path in history.disk.files() if path.parent.name == "commitlog"]
    assert len(names) >= 3
    assert history.acknowledged > 100


def points(campaign: Campaign, seed: int) -> range:
    """Calls of the scenario, those of its restart too; each of them in a campaign."""
    return range(1, whole(seed).disk.steps + 1, 1 if campaign.long else 5)


@pytest.mark.parametrize("power", [True, False], ids=["power cut", "kill"])
def test_acknowledged_messages_survive_a_crash_in_any_call(campaign: Campaign, power: bool) -> None:
    """The call in which it happens is torn, done, or not done."""
    count = 0
    for crash_at in points(campaign, 1):
        history = crashed(1, crash_at)
        if power:
            history.cut_power()
        else:
            history.kill()
        with reporting(f"crash in call {crash_at}"):
            history.open()
            history.check()
        count += 1
    campaign.report(f"{count} crash points, 0 messages lost")


def test_a_recovery_may_be_interrupted_in_any_call(campaign: Campaign) -> None:
    """The power goes in the middle, then in each call of the recovery, then it may finish."""
    count = 0
    for crash_at in points(campaign, 2)[::40]:
        at = 1
        while True:
            history = crashed(2, crash_at)
            history.cut_power()
            history.disk.crash_at = at
            try:
                history.open()
                break
            except PowerCut:
                history.cut_power()
            with reporting(f"call {crash_at}, then {at} of the recovery"):
                history.open()
                history.check()
            count += 1
            at += 1
    campaign.report(f"{count} interrupted recoveries, 0 messages lost")
