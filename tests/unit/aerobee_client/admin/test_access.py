"""Changes of users: which processes have them, and which change won."""

from __future__ import annotations

import pytest
from aerobee.access.v1 import access_pb2 as pb

from aerobee_client import AsyncAdminClient
from aerobee_client.admin.access import OVERTAKEN
from aerobee_wire.status import Code
from support.client.memory import MemoryCluster
from support.codes import raises_code

KEY, WRITTEN = "user/app", (100, "namesrv-a")


def versions(time_ms: int, node: str) -> list[pb.RecordVersion]:
    return [pb.RecordVersion(key=KEY, version=pb.Version(time_ms=time_ms, node=node))]


@pytest.mark.parametrize(
    ("found", "reasons"),
    [
        (WRITTEN, set()),
        ((101, "namesrv-a"), set()),  # a later change at the same process contains this one
        ((101, "namesrv-b"), {OVERTAKEN}),
        ((100, "namesrv-b"), {OVERTAKEN}),  # in the same millisecond
    ],
)
async def test_change_that_loses_against_another_one_is_reported(
    admin: AsyncAdminClient, cluster: MemoryCluster, found: tuple[int, str], reasons: set[str]
) -> None:
    cluster.answers["PutUser"] = lambda *_: pb.ChangeResponse(written=versions(*WRITTEN))
    cluster.answers["ListTable"] = lambda *_: pb.ListTableResponse(records=versions(*found))
    change = await admin.update_user("app", enabled=False)
    assert set(change.lacking.values()) == reasons
    assert len(change.lacking) == 2 * len(reasons), "each broker was asked"


async def test_a_rate_beyond_every_number_is_refused(
    admin: AsyncAdminClient, cluster: MemoryCluster
) -> None:
    with raises_code(Code.INVALID_PARAMETER):
        await admin.set_quota("User:app", messages_in=10**30)
    assert not cluster.requests("PutQuota")
