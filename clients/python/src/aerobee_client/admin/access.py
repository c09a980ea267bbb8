"""Change and list users and their policies: part of AsyncAdminClient."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from aerobee.access.v1 import access_pb2 as pb
from google.protobuf.message import Message

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.brokers import BrokerAdmin, numbers_fit
from aerobee_client.errors import BrokerUnreachable, NamesrvUnreachable, RequestTimeout
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire.rpcs import BROKER_ACCESS, LOG_IN, NAMESRV_ACCESS, Request, Rpc
from aerobee_wire.status import MqError

Q = TypeVar("Q", bound=Request)
R = TypeVar("R", bound=Message)

CALL_TIMEOUT_S = 3.0
SPREAD_S = 2.0  # within which a change reaches each process
LOOK_S = 0.05
OVERTAKEN = (
    "another command changed it at the same time: read it, and repeat this change if it is lost"
)


@checked_class
class AccessAdmin(BrokerAdmin):
    async def create_user(
        self, username: str, secret: str, *, super: bool = False, enabled: bool = True
    ) -> d.AccessChange:
        """Create a user.

        Args:
            username: The access key: 1 to 128 characters, without blanks and without , / =.
            secret: The secret key.
            super: Whether the user may do everything.
            enabled: Whether calls of the user are served.

        Returns:
            The processes that the change has not reached.

        Raises:
            MqError: ILLEGAL_OPERATION if the user exists, or INVALID_PARAMETER.
        """
        return await self._change(
            NAMESRV_ACCESS.put_user,
            pb.PutUserRequest(
                username=username,
                secret=secret,
                super=super,
                enabled=enabled,
                expect=pb.EXPECT_ABSENT,
            ),
        )

    async def update_user(
        self,
        username: str,
        *,
        secret: str | None = None,
        keep_former_secret: bool = False,
        drop_former_secret: bool = False,
        super: bool | None = None,
        enabled: bool | None = None,
    ) -> d.AccessChange:
        """Change a user. What is None stays as it is.

        Args:
            username: The access key.
            secret: A new secret key. The newest one changes nothing.
            keep_former_secret: Whether the present secret stays valid, until it is dropped.
                A user has at most two secrets.
            drop_former_secret: Whether only the newest secret stays valid.
            super: Whether the user may do everything.
            enabled: Whether calls of the user are served.

        Returns:
            The processes that the change has not reached.

        Raises:
            MqError: ILLEGAL_OPERATION if the user does not exist, or if it is the last enabled
                SUPER user and would not be one any more, or for a third secret;
                INVALID_PARAMETER.
        """
        return await self._change(
            NAMESRV_ACCESS.put_user,
            pb.PutUserRequest(
                username=username,
                secret=secret,
                keep_former_secret=keep_former_secret,
                drop_former_secret=drop_former_secret,
                super=super,
                enabled=enabled,
                expect=pb.EXPECT_PRESENT,
            ),
        )

    async def delete_user(self, username: str) -> d.AccessChange:
        """Delete a user and its policies.

        Args:
            username: The access key.

        Returns:
            The processes that the change has not reached.

        Raises:
            MqError: QUERY_NOT_FOUND, or ILLEGAL_OPERATION for the last enabled SUPER user.
        """
        request = pb.DeleteUserRequest(username=username)
        return await self._change(NAMESRV_ACCESS.delete_user, request)

    async def get_user(self, username: str) -> d.UserDescription:
        """Return a user, without secrets. Raises MqError with the code QUERY_NOT_FOUND."""
        _, answer = await self._ask_any(
            NAMESRV_ACCESS.get_user, pb.GetUserRequest(username=username)
        )
        return d.UserDescription.of(answer.user)

    async def list_users(self) -> list[d.UserDescription]:
        """Return all users by name, without secrets."""
        _, answer = await self._ask_any(NAMESRV_ACCESS.list_users, pb.ListUsersRequest())
        return [d.UserDescription.of(user) for user in answer.users]

    async def log_in(self, *, visitor: str = "") -> str:
        """Prove that this client signs as a user, and write that to the audit log.

        One name server checks the signature, and writes the line.

        Args:
            visitor: The address of the person who logs in, for the line.

        Returns:
            The user. "" if the name server does not check signatures, so that nothing is proved.

        Raises:
            MqError: NO_PERMISSION if the user is unknown or disabled or has another secret key;
                SYSTEM_ERROR if the line cannot be written; REQUEST_CODE_NOT_SUPPORTED if the name
                server is of an earlier version.
        """
        _, answer = await self._ask_any(LOG_IN, pb.LogInRequest(visitor=visitor))
        return answer.username

    async def create_policies(
        self, username: str, policies: Sequence[d.PolicyDescription]
    ) -> d.AccessChange:
        """Add policies of a user.

        Args:
            username: The access key. The user may be created later.
            policies: At most 1,000 policies.

        Returns:
            The processes that the change has not reached.

        Raises:
            MqError: ILLEGAL_OPERATION if the user has a policy with the same resource, type and
                decision; then nothing is changed. INVALID_PARAMETER.
        """
        return await self._put_policies(username, policies, pb.EXPECT_ABSENT)

    async def update_policies(
        self, username: str, policies: Sequence[d.PolicyDescription], *, create: bool = False
    ) -> d.AccessChange:
        """Replace the policies of a user with the same resource, type and decision.

        Args:
            username: The access key.
            policies: At most 1,000 policies.
            create: Whether to add a policy that does not exist, instead of an error.

        Returns:
            The processes that the change has not reached.

        Raises:
            MqError: ILLEGAL_OPERATION if one does not exist; then nothing is changed.
                INVALID_PARAMETER.
        """
        expect = pb.EXPECT_ANY if create else pb.EXPECT_PRESENT
        return await self._put_policies(username, policies, expect)

    async def delete_policies(
        self, username: str, *, resource: str = "", policy_type: str = ""
    ) -> d.AccessChange:
        """Delete policies of a user.

        Args:
            username: The access key.
            resource: Only policies of exactly this resource.
            policy_type: Only policies of this type, CUSTOM or DEFAULT.

        Returns:
            The processes that the change has not reached.

        Raises:
            MqError: QUERY_NOT_FOUND if no policy matches.
        """
        request = pb.DeleteAclRequest(username=username, resource=resource)
        if policy_type:
            request.is_default = policy_type == "DEFAULT"
        return await self._change(NAMESRV_ACCESS.delete_acl, request)

    async def list_policies(self, username: str = "") -> dict[str, list[d.PolicyDescription]]:
        """Return policies by user. Of one user, they are in the order in which they decide.

        Args:
            username: Only the policies of this user.

        Returns:
            The policies.

        Raises:
            MqError: QUERY_NOT_FOUND if `username` is given and has no policies.
        """
        if username:
            request = pb.GetAclRequest(username=username)
            _, one = await self._ask_any(NAMESRV_ACCESS.get_acl, request)
            return {username: [d.PolicyDescription.of(each) for each in one.policies]}
        _, all_of_them = await self._ask_any(NAMESRV_ACCESS.list_acls, pb.ListAclsRequest())
        return {
            acl.username: [d.PolicyDescription.of(each) for each in acl.policies]
            for acl in all_of_them.acls
        }

    async def test_access(
        self, username: str, resource: str, action: str, *, source_ip: str = ""
    ) -> d.AccessDecision:
        """Return whether a user may do something, and which policy decides. Changes nothing.

        Args:
            username: The access key.
            resource: One resource, such as "Topic:orders".
            action: Pub, Sub, Create, Update, Delete, Get or List.
            source_ip: The address of the client; "" if it is unknown.

        Returns:
            The decision.

        Raises:
            MqError: QUERY_NOT_FOUND if there is no such user, or INVALID_PARAMETER.
        """
        request = pb.TestAccessRequest(
            username=username, resource=resource, action=action, source_ip=source_ip
        )
        _, answer = await self._ask_any(NAMESRV_ACCESS.test_access, request)
        return d.AccessDecision.of(answer)

    async def set_quota(
        self,
        subject: str,
        *,
        calls: int = 0,
        messages_in: int = 0,
        bytes_in: int = 0,
        messages_out: int = 0,
        bytes_out: int = 0,
    ) -> d.AccessChange:
        """Set the quota of a user, a client or an address. It replaces the former one.

        Each process that serves the subject counts by itself. A rate of 0 is unlimited, and at
        least one is not 0.

        Args:
            subject: "User:NAME", "Client:ID" or "Address:HOST"; the name * is the default of its
                kind. Only proxies count the sends of a client by its id.
            calls: Calls a second.
            messages_in: Messages that the client sends a second.
            bytes_in: Bytes of their bodies a second.
            messages_out: Messages that the client receives a second.
            bytes_out: Bytes of their records a second.

        Returns:
            The processes that the change has not reached.

        Raises:
            MqError: INVALID_PARAMETER.
        """
        with numbers_fit():
            quota = pb.Quota(
                subject=subject,
                calls=calls,
                messages_in=messages_in,
                bytes_in=bytes_in,
                messages_out=messages_out,
                bytes_out=bytes_out,
            )
        return await self._change(NAMESRV_ACCESS.put_quota, pb.PutQuotaRequest(quota=quota))

    async def list_quotas(self) -> list[d.QuotaDescription]:
        """Return all quotas, by subject."""
        _, answer = await self._ask_any(NAMESRV_ACCESS.list_quotas, pb.ListQuotasRequest())
        return [d.QuotaDescription.of(quota) for quota in answer.quotas]

    async def delete_quota(self, subject: str) -> d.AccessChange:
        """Delete a quota.

        Args:
            subject: "User:NAME", "Client:ID" or "Address:HOST".

        Returns:
            The processes that the change has not reached.

        Raises:
            MqError: QUERY_NOT_FOUND if the subject has no quota, or INVALID_PARAMETER.
        """
        request = pb.DeleteQuotaRequest(subject=subject)
        return await self._change(NAMESRV_ACCESS.delete_quota, request)

    async def _put_policies(
        self, username: str, policies: Sequence[d.PolicyDescription], expect: pb.Expect
    ) -> d.AccessChange:
        request = pb.PutAclRequest(
            username=username, policies=[each.message() for each in policies], expect=expect
        )
        return await self._change(NAMESRV_ACCESS.put_acl, request)

    async def _ask_any(self, rpc: Rpc[Q, R], request: Q) -> tuple[str, R]:
        """Return the first name server that answers, and its answer.

        A change is sent to one name server at a time: two of them would write it twice.
        """
        failure: MqError | None = None
        for namesrv in await self._instance.namesrv.present():
            try:
                answer = await self._instance.transport.call(
                    namesrv, rpc, request, timeout_s=CALL_TIMEOUT_S
                )
            except (BrokerUnreachable, NamesrvUnreachable, RequestTimeout) as error:
                failure = error
            else:
                return namesrv, answer
        assert failure is not None, "there is a name server"
        raise NamesrvUnreachable(self._instance.namesrv.addresses, str(failure)) from None

    async def _change(self, rpc: Rpc[Q, pb.ChangeResponse], request: Q) -> d.AccessChange:
        """Make a change at one name server, and wait until the other processes have it."""
        changed_at, answer = await self._ask_any(rpc, request)
        written = {
            record.key: (record.version.time_ms, record.version.node) for record in answer.written
        }
        others = {
            f"name server {namesrv}": (namesrv, NAMESRV_ACCESS.list_table)
            for namesrv in await self._instance.namesrv.present()
            if namesrv != changed_at
        }
        info = await self._brokers.cluster_info()
        for broker in info.brokers:
            for address in broker.addresses.values():
                name = f"broker {broker.broker_name} at {address}"
                others[name] = (address, BROKER_ACCESS.list_table)
        reasons = await asyncio.gather(
            *(self._until_there(address, rpc, written) for address, rpc in others.values())
        )
        lacking = {
            name: reason for name, reason in zip(others, reasons, strict=True) if reason is not None
        }
        lacking |= {
            f"broker {away.broker_name}": "it is not registered any more, and reads the table from "
            "a name server when it is started again"
            for away in info.away_brokers
        }
        return d.AccessChange(changed_at=changed_at, lacking=lacking)

    async def _until_there(
        self,
        address: str,
        rpc: Rpc[pb.ListTableRequest, pb.ListTableResponse],
        written: dict[str, tuple[int, str]],
    ) -> str | None:
        """Wait until a process has the records.

        Return the reason if it has not after SPREAD_S, or if it has a newer change of another
        process, which may not contain this one.
        """
        request = pb.ListTableRequest(keys=written)
        reason: str | None = None
        try:
            async with asyncio.timeout(SPREAD_S):
                while True:
                    try:
                        answer = await self._instance.transport.call(
                            address, rpc, request, timeout_s=SPREAD_S
                        )
                    except MqError as error:
                        reason = error.message
                    else:
                        found = {
                            record.key: (record.version.time_ms, record.version.node)
                            for record in answer.records
                        }
                        if any(_is_of_another(found.get(key), at) for key, at in written.items()):
                            return OVERTAKEN
                        if all(found.get(key, (0, "")) >= at for key, at in written.items()):
                            return None
                        reason = f"it does not have the change after {SPREAD_S:g} s"
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            return reason or f"no answer within {SPREAD_S:g} s"


def _is_of_another(found: tuple[int, str] | None, written: tuple[int, str]) -> bool:
    """Return whether another process made a newer change.

    A newer change by the process that wrote this one contains it.
    """
    return found is not None and found > written and found[1] != written[1]
