"""Read whole records for another replica that repairs its log, where both logs are equal.

This module does not depend on a transport.
"""

from __future__ import annotations

from collections.abc import Sequence

from aerobee_broker.errors import MessageCorrupted, MessageNotFound, ReplicaRefused
from aerobee_broker.replication.log.handshake import LogDescription, alike_below, check_group
from aerobee_broker.store.damage import DamagedRange
from aerobee_broker.store.ship import Chunk, LogShipper

ANSWER_BYTES = 1 << 20


def readable_ranges(
    caller: LogDescription, own: LogDescription, ranges: Sequence[DamagedRange]
) -> list[DamagedRange]:
    """Return the parts of `ranges` in which both logs are equal.

    Raises ReplicaRefused if the logs have no epoch in common, and MessageNotFound if there is no
    such part.
    """
    check_group(caller, own)
    alike = alike_below(caller, own)
    if alike is None:
        raise ReplicaRefused(
            f"the logs of replica {caller.replica} and replica {own.replica} have no epoch in "
            "common: neither can be repaired from the other",
            about="storePathRootDir",
        )
    found = [
        DamagedRange(each.begin, min(each.end, alike))
        for each in ranges
        if own.lowest <= each.begin < alike
    ]
    if not found:
        raise MessageNotFound(
            f"the log of replica {own.replica} has none of that in common with replica "
            f"{caller.replica}: they are alike from {own.lowest} to {alike}"
        )
    return found


def read_ranges(shipper: LogShipper, ranges: Sequence[DamagedRange]) -> list[Chunk]:
    """Read records of the ranges, up to ANSWER_BYTES or one more record. Blocks.

    Raises TransientReadError. Raises MessageCorrupted if no record was read because of damage in
    this log too.
    """
    chunks: list[Chunk] = []
    size, error = 0, None
    for each in ranges:
        at = each.begin
        while at < each.end and size < ANSWER_BYTES:
            try:
                chunk = shipper.read(at, ANSWER_BYTES - size, each.end)
            except MessageCorrupted as found:
                error = found
                break
            if chunk is None:
                break
            chunks.append(chunk)
            size += len(chunk.data)
            at = chunk.end
    if error is not None and not chunks:
        raise error
    return chunks
