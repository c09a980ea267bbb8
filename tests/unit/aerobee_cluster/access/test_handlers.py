"""The RPCs of the access table: refusals, rotation, tests of rights, and no secret in an answer."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
from aerobee.access.v1 import access_pb2 as pb

from aerobee_chassis.background import BackgroundTask
from aerobee_cluster.access.handlers import AccessHandlers
from aerobee_cluster.access.store import AccessStore
from aerobee_wire.access.caller import ANYBODY, Caller
from aerobee_wire.access.signature import Signed
from aerobee_wire.access.table import LAST_MS
from aerobee_wire.access.users import User
from aerobee_wire.rpcs import NAMESRV_ACCESS
from aerobee_wire.status import Code, MqError
from support.codes import raises_about

SECRET, NEW = "s3cret", "n3w-secret"


class FakeCall:
    def __init__(self, peer: str = "127.0.0.1:40000", caller: Caller = ANYBODY) -> None:
        self.peer = peer
        self.caller = caller
        self.written: list[Any] = []

    async def write(self, message: Any) -> None:
        self.written.append(message)


CALL = FakeCall()


class Server:
    def __init__(self, *, private: bool = False) -> None:
        self.store = AccessStore("n", lambda: 1_800_000_000_000)
        self.logged: list[tuple[str, dict[str, object]]] = []
        self.rpc = AccessHandlers(self.store, private=private, log=self.log)

    def log(self, event: str, **fields: object) -> None:
        self.logged.append((event, fields))

    async def user(self, name: str = "app", secret: str = SECRET, **more: Any) -> None:
        await self.rpc.put_user(pb.PutUserRequest(username=name, secret=secret, **more), CALL)

    async def acl(self, *policies: pb.Policy, name: str = "app", **more: Any) -> None:
        await self.rpc.put_acl(pb.PutAclRequest(username=name, policies=policies, **more), CALL)

    def secrets(self, name: str = "app") -> list[str]:
        user = self.store.table.user(name)
        return [] if user is None else [secret.decode() for secret in user.secrets]

    async def may(self, resource: str, action: str, **more: Any) -> pb.TestAccessResponse:
        request = pb.TestAccessRequest(username="app", resource=resource, action=action, **more)
        return await self.rpc.test_access(request, CALL)


@pytest.fixture
def server() -> Server:
    return Server()


async def refused(code: Code, call: Any) -> MqError:
    with pytest.raises(MqError) as caught:
        await call
    assert caught.value.code is code and SECRET not in str(caught.value)
    return caught.value


async def test_new_user_and_listing_without_a_secret(server: Server) -> None:
    await server.user()
    await server.user("admin", super=True)
    listed = await server.rpc.list_users(pb.ListUsersRequest(), CALL)
    assert [(user.username, user.enabled, user.super) for user in listed.users] == [
        ("admin", True, True),
        ("app", True, False),
    ]
    answers = (
        listed,
        await server.rpc.get_user(pb.GetUserRequest(username="app"), CALL),
        await server.rpc.list_table(pb.ListTableRequest(), CALL),
        server.logged,
    )
    assert SECRET not in str(answers)
    assert [event for event, _ in server.logged] == ["user_changed"] * 2


async def test_expectations(server: Server) -> None:
    await refused(Code.ILLEGAL_OPERATION, server.user(expect=pb.EXPECT_PRESENT))
    await server.user(expect=pb.EXPECT_ABSENT)
    await refused(Code.ILLEGAL_OPERATION, server.user(expect=pb.EXPECT_ABSENT))
    policy = pb.Policy(resource="Topic:orders", actions=["Pub"])
    await refused(Code.ILLEGAL_OPERATION, server.acl(policy, expect=pb.EXPECT_PRESENT))
    await server.acl(policy, expect=pb.EXPECT_ABSENT)
    await refused(Code.ILLEGAL_OPERATION, server.acl(policy, expect=pb.EXPECT_ABSENT))


async def test_rotation_keeps_the_former_secret_until_it_is_dropped(server: Server) -> None:
    await server.user()
    await server.user(secret=NEW, keep_former_secret=True)
    assert server.secrets() == [NEW, SECRET]
    error = await refused(
        Code.ILLEGAL_OPERATION, server.user(secret="third", keep_former_secret=True)
    )
    assert "third" not in str(error) and "--finish" in str(error)
    assert server.secrets() == [NEW, SECRET]
    request = pb.PutUserRequest(username="app", drop_former_secret=True)
    await server.rpc.put_user(request, CALL)
    assert server.secrets() == [NEW]


async def test_repeated_secret_changes_no_secret(server: Server) -> None:
    await server.user()
    await server.user(secret=SECRET, keep_former_secret=True)
    assert server.secrets() == [SECRET]
    await server.user(secret=NEW, keep_former_secret=True)
    await server.user(secret=NEW, keep_former_secret=True)
    assert server.secrets() == [NEW, SECRET]
    await server.user(secret=NEW)  # as an import of a file sends it
    assert server.secrets() == [NEW, SECRET]


async def test_former_secret_becomes_the_newest_again(server: Server) -> None:
    await server.user()
    await server.user(secret=NEW, keep_former_secret=True)
    await server.user(secret=SECRET, keep_former_secret=True)
    assert server.secrets() == [SECRET, NEW]
    await server.user(secret="third")
    assert server.secrets() == ["third"]


async def test_change_keeps_what_it_does_not_name(server: Server) -> None:
    await server.user(super=True)
    await server.user("other", super=True)
    await server.rpc.put_user(pb.PutUserRequest(username="app", enabled=False), CALL)
    user = server.store.table.user("app")
    assert user is not None and (user.super, user.enabled) == (True, False)
    assert user.secrets == (SECRET.encode(),)


async def test_invalid_users_are_refused(server: Server) -> None:
    for bad in ("", "a b", "a/b", "a,b", "a=b", "x" * 129, "a\x1bb"):
        await refused(Code.INVALID_PARAMETER, server.user(bad))
    await refused(Code.INVALID_PARAMETER, server.user(secret=""))
    await refused(Code.INVALID_PARAMETER, server.user(secret=SECRET * 300))
    new = pb.PutUserRequest(username="app", enabled=True)
    await refused(Code.QUERY_NOT_FOUND, server.rpc.put_user(new, CALL))


async def test_last_super_user_cannot_be_deleted(server: Server) -> None:
    await server.user("admin", super=True)
    request = pb.DeleteUserRequest(username="admin")
    await refused(Code.ILLEGAL_OPERATION, server.rpc.delete_user(request, CALL))


async def test_deleted_user_leaves_no_policy_for_a_later_one(server: Server) -> None:
    await server.user()
    await server.acl(pb.Policy(resource="*", actions=["All"]))
    await server.rpc.delete_user(pb.DeleteUserRequest(username="app"), CALL)
    await refused(
        Code.QUERY_NOT_FOUND, server.rpc.delete_user(pb.DeleteUserRequest(username="app"), CALL)
    )
    await refused(Code.QUERY_NOT_FOUND, server.rpc.get_acl(pb.GetAclRequest(username="app"), CALL))
    await server.user()
    assert not (await server.may("Topic:orders", "Pub")).allowed


async def test_policies_are_listed_in_the_order_in_which_they_decide(server: Server) -> None:
    await server.user()
    await server.acl(
        pb.Policy(resource="*", actions=["All"], is_default=True),
        pb.Policy(resource="Topic:*", actions=["Pub"]),
        pb.Policy(resource="Topic:orders", actions=["Pub"], deny=True, source_ips=["10.0.0.0/8"]),
    )
    found = await server.rpc.get_acl(pb.GetAclRequest(username="app"), CALL)
    assert [each.resource for each in found.policies] == ["Topic:orders", "Topic:*", "*"]
    listed = await server.rpc.list_acls(pb.ListAclsRequest(), CALL)
    assert [(each.username, len(each.policies)) for each in listed.acls] == [("app", 3)]
    request = pb.DeleteAclRequest(username="app", is_default=True)
    await server.rpc.delete_acl(request, CALL)
    await server.rpc.delete_acl(pb.DeleteAclRequest(username="app", resource="Topic:*"), CALL)
    found = await server.rpc.get_acl(pb.GetAclRequest(username="app"), CALL)
    assert [each.resource for each in found.policies] == ["Topic:orders"]


async def test_a_deletion_that_finds_nothing_does_not_advise_to_create(server: Server) -> None:
    def deletion(**only: Any) -> Any:
        return server.rpc.delete_acl(pb.DeleteAclRequest(username="app", **only), CALL)

    await server.user()
    nothing = await refused(Code.QUERY_NOT_FOUND, deletion())
    await server.acl(pb.Policy(resource="Topic:*", actions=["Pub"]))
    other = await refused(Code.QUERY_NOT_FOUND, deletion(is_default=True, resource="Topic:a"))
    assert other.about == "resource" and "DEFAULT for Topic:a" in other.message
    user = pb.DeleteUserRequest(username="nobody")
    unknown = await refused(Code.QUERY_NOT_FOUND, server.rpc.delete_user(user, CALL))
    for error in (nothing, other, unknown):
        assert "create" not in error.message


async def test_versions_of_some_records_are_listed(server: Server) -> None:
    await server.user()
    await server.user("other")
    await server.acl(pb.Policy(resource="Topic:a/b", actions=["Pub"], deny=True))
    every = await server.rpc.list_table(pb.ListTableRequest(), CALL)
    keys = ["policy/app/CUSTOM/Topic:a/b/DENY", "user/app", "user/other"]
    assert sorted(each.key for each in every.records) == keys
    for key in keys:
        request = pb.ListTableRequest(keys=[key, "user/no", "policy/x", ""])
        found = await server.rpc.list_table(request, CALL)
        assert [each.key for each in found.records] == [key]


async def test_decision_for_an_address(server: Server) -> None:
    await server.user()
    await server.acl(
        pb.Policy(resource="Topic:orders", actions=["Pub"], source_ips=["2001:db8::/32", "::1"]),
    )
    for source in ("2001:db8::5", "[2001:db8::5]:4000", "::1"):
        assert (await server.may("Topic:orders", "Pub", source_ip=source)).allowed, source
    assert not (await server.may("Topic:orders", "Pub", source_ip="2001:db9::5")).allowed
    for source in ("x", "10.0.0", "2001:db8::/32"):
        refusal = server.may("Topic:orders", "Pub", source_ip=source)
        await refused(Code.INVALID_PARAMETER, refusal)


async def test_deciding_policy_is_named(server: Server) -> None:
    await server.user()
    await server.acl(
        pb.Policy(resource="Topic:*", actions=["Pub"]),
        pb.Policy(resource="Topic:orders", actions=["Pub"], deny=True, source_ips=["10.0.0.0/8"]),
    )
    found = await server.may("Topic:orders", "Pub", source_ip="10.1.1.1")
    assert not found.allowed and found.deciding.resource == "Topic:orders"
    found = await server.may("Topic:orders", "Pub", source_ip="11.1.1.1")
    assert found.allowed and found.deciding.resource == "Topic:*"
    found = await server.may("Group:orders", "Sub")
    assert not found.allowed and not found.HasField("deciding")
    for resource, action in (
        ("Topic:*", "Pub"),
        ("*", "Pub"),
        ("orders", "Pub"),
        ("Topic:orders", "All"),
        ("Topic:orders", "pub"),
    ):
        await refused(Code.INVALID_PARAMETER, server.may(resource, action))
    await server.user("admin", super=True)
    await server.user(super=True)
    assert (await server.may("Group:orders", "Sub")).allowed
    await server.rpc.put_user(pb.PutUserRequest(username="app", enabled=False), CALL)
    assert not (await server.may("Topic:orders", "Pub")).allowed


async def test_invalid_policies_change_nothing(server: Server) -> None:
    good = pb.Policy(resource="*", actions=["All"])
    for bad in (
        pb.Policy(resource="orders", actions=["Pub"]),
        pb.Policy(resource="Topic:orders"),
        pb.Policy(resource="Topic:orders", actions=["pub"]),
        pb.Policy(resource="Topic:orders", actions=["Pub"], source_ips=["localhost"]),
    ):
        await refused(Code.INVALID_PARAMETER, server.acl(good, bad))
    await refused(Code.INVALID_PARAMETER, server.acl())
    assert len(server.store.table) == 0


@pytest.mark.parametrize(
    ("peer", "private", "served"),
    [
        ("127.0.0.1:1", False, True),
        ("[::1]:1", False, True),
        ("[::ffff:127.0.0.1]:1", False, True),
        ("unix", False, True),
        ("10.0.0.1:1", False, False),
        ("[2001:db8::1]:1", False, False),
        ("10.0.0.1:1", True, True),
    ],
)
async def test_plaintext_serves_callers_on_this_machine_only(
    peer: str, private: bool, served: bool
) -> None:
    server, call = Server(private=private), FakeCall(peer)
    requests = {rpc.method: rpc.request for rpc in vars(NAMESRV_ACCESS).values()}
    assert len(requests) == 15
    for method, request in requests.items():
        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in method).lstrip("_")
        if method == "Watch" and served:
            server.store.close()
        code = None
        try:
            await getattr(server.rpc, name)(request(), call)
        except MqError as error:
            code = error.code
        assert (code is not Code.NO_PERMISSION) is served, method


async def test_notifications_end_when_the_table_closes(server: Server) -> None:
    notified: list[set[str]] = []
    recheck = BackgroundTask("access recheck", partial(server.store.notify, notified.append))
    await recheck.start()
    await asyncio.sleep(0.1)
    await server.user()
    await asyncio.sleep(0.1)
    assert notified == [{"app"}]
    server.store.close()
    await asyncio.sleep(0.1)
    assert "access recheck" not in {task.get_name() for task in asyncio.all_tasks()}
    await recheck.stop()


async def test_login_answers_the_user_whose_signature_was_checked(server: Server) -> None:
    signed = Caller(None, Signed(User("ann", (b"s",)), b"s", ""))
    request = pb.LogInRequest()
    assert (await server.rpc.log_in(request, FakeCall(caller=signed))).username == "ann"
    assert (await server.rpc.log_in(request, FakeCall())).username == ""


@pytest.mark.parametrize("time_ms", [2**63 - 1, LAST_MS + 1, -1])
async def test_record_with_an_impossible_time_is_rejected(server: Server, time_ms: int) -> None:
    """The next change would have a version that no message can carry, and so no table could."""
    version = pb.Version(time_ms=time_ms, node="n")
    user = pb.TableRecord.User(secrets=[SECRET], enabled=True)
    record = pb.TableRecord(version=version, username="app", user=user)
    with raises_about(MqError, "time_ms"):
        await server.rpc.merge_table(pb.MergeTableRequest(records=[record]), CALL)
    await server.user()
    await server.rpc.list_table(pb.ListTableRequest(), CALL)
