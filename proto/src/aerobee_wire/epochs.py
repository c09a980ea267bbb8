"""The epochs of a broker group: the steps in which they rise, and which ones a group can reach."""

from __future__ import annotations

# A promotion by an operator takes the next multiple of this number.
PROMOTION_STEP = 1_000_000
# No replica misses this number of promotions. Epochs end at 2^63, which is 9 million times as far.
MOST_MISSED = 1_000_000


def can_reach(epoch: int, known: int) -> bool:
    """Return whether a group that was in the epoch `known` once can be in `epoch` now.

    A replica that reports another epoch is corrupt. If others took part in that epoch, no epoch
    above it would be left for their next master.
    """
    return epoch <= known + MOST_MISSED * PROMOTION_STEP
