"""Check callers, for a server whose port requires certificates or signatures.

A policy decides (`aerobee_wire.permissions`). This module finds out who calls, logs rejected calls,
and lets them pass if they are only to be observed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import structlog

from aerobee_chassis.rpc.audit import Audit, Who, holder_of
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.guesses import Guesses
from aerobee_chassis.rpc.held_calls import HeldCalls
from aerobee_wire.access.caller import Caller
from aerobee_wire.access.signature import (
    AUTHORIZATION_KEY,
    NotAuthenticated,
    Signatures,
    WrongCredentials,
    claimed_user,
)
from aerobee_wire.identity import Identity
from aerobee_wire.status import MqError

_MOST_LOGGED = 10_000  # callers and RPCs; an entry takes some 200 bytes


class Policy(Protocol):
    """Decide who may call an RPC. `path` is "/package.Service/Method"."""

    def missing(self, paths: Iterable[str]) -> Sequence[str]:
        """Return those paths for which the policy has no decision."""

    def always_rejects(self, path: str) -> bool:
        """Return whether other callers are rejected even if calls are only observed."""

    def admit(self, caller: Caller, path: str) -> None:
        """Check a caller before its request is read. Raises MqError."""

    def authorize(self, caller: Caller, path: str, request: Any) -> None:
        """Check the request of a caller that `admit` has admitted. Raises MqError."""


class RejectionLog:
    """Log rejected calls, once for each caller and RPC: a rejected client may retry forever."""

    def __init__(self) -> None:
        self._logged: set[tuple[Identity | str, str]] = set()

    def note(
        self, path: str, peer: str, reason: str, *, who: Identity | str = "", passes: bool
    ) -> None:
        """Log that a call by `who` to the RPC at `path` was rejected.

        If it `passes`, log that it would be rejected. A caller without an identity is known by its
        host, because its port changes.
        """
        key = who or peer.rpartition(":")[0], path
        if key in self._logged:
            return
        if len(self._logged) >= _MOST_LOGGED:
            self._logged.clear()
        self._logged.add(key)
        structlog.get_logger().warning(
            "call_would_be_rejected" if passes else "call_rejected",
            caller=str(who),
            rpc=path,
            peer=peer,
            reason=reason,
        )


class Access:
    """Check the calls of one server.

    If `enforced` is false, no call is checked, because the port does not require certificates. With
    `observe_only`, calls are checked and logged, but not rejected, unless the policy always rejects
    them. With `reports_plaintext`, calls without TLS are logged, too, because a port that enforces
    TLS would not get them. `signatures` checks calls that users have signed; if it is None, the
    port serves no users. `guesses` delays the answers to wrong signatures. `audit` gets each
    rejected call.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        enforced: bool,
        observe_only: bool = False,
        reports_plaintext: bool = False,
        signatures: Signatures | None = None,
        guesses: Guesses | None = None,
        audit: Audit | None = None,
    ) -> None:
        self.enforced = enforced
        self._policy = policy
        self._observe_only = observe_only
        self._reports_plaintext = reports_plaintext
        self._signatures = signatures
        self._guesses = guesses
        self._audit = audit
        self._held = HeldCalls(MqError)
        self._log = RejectionLog()
        self.rejected = 0  # calls that were rejected, or would be

    def cover(self, paths: Iterable[str]) -> None:
        """Raise TypeError if an RPC has no decision, so that a new RPC is not open by mistake."""
        if missing := self._policy.missing(paths):
            raise TypeError(f"no row in the table of permissions: {', '.join(missing)}")

    def admit(self, path: str, call: Call) -> Caller:
        """Check a caller before its request is read, and return it. Raises MqError."""
        caller, header = None, ""
        try:
            if self._signatures is not None:
                header = call.metadata.get(AUTHORIZATION_KEY, "")
                if (signed := self._signatures.check(header, path)) is not None:
                    caller = Caller(None, signed, call.peer)
            caller = caller or _holder(call)
            self._policy.admit(caller, path)
        except MqError as error:
            caller = caller or _holder(call)
            if isinstance(error, WrongCredentials) and not self._passes(path):
                self._note_guess(call)
            self._reject(caller, path, call, error, claimed_user(header))
        else:
            if self._reports_plaintext and not call.is_encrypted:
                who = _name_of(caller)
                self._log.note(path, caller.source, "it does not use TLS", who=who, passes=True)
        return caller

    def check_request(self, path: str, caller: Caller, data: bytes, call: Call) -> None:
        """Check that a user has signed this request. Raises MqError."""
        signed = caller.signed
        if signed is None or (signed.covers(data) and (not signed.needs_tls or call.is_encrypted)):
            return
        error = NotAuthenticated("the request is not the one that was signed")
        self._reject(caller, path, call, error)

    def authorize(self, path: str, caller: Caller, request: Any, call: Call) -> None:
        """Check a request after it was parsed. Raises MqError."""
        try:
            self._policy.authorize(caller, path, request)
        except MqError as error:
            self._reject(caller, path, call, error)

    def renewed(self, path: str, call: Call) -> Caller:
        """Return the caller with its user as it is now. Raises MqError if it may not call any more.

        A user may have changed since `admit`, because a request may arrive long after its headers.
        """
        caller = call.caller
        signatures, signed = self._signatures, caller.signed
        if signatures is None or signed is None:
            return caller
        now = caller
        try:
            renewed = signatures.renewed(signed)
            if renewed is signed:
                return caller
            now = caller._replace(signed=renewed)
            self._policy.admit(now, path)
        except MqError as error:
            self._reject(caller, path, call, error)
        return now

    # ---- calls that last ----

    def hold(self, path: str, call: Call, request: Any | None) -> AbstractContextManager[None]:
        """Return a block in which a call ends if its user loses the right to make it.

        `request` is None for a stream of requests. The block then raises MqError.
        """
        signed = call.caller.signed
        if self._signatures is None or signed is None:
            return nullcontext()

        def check() -> None:
            now = self.renewed(path, call)
            if request is not None:
                self.authorize(path, now, request, call)

        return self._held.hold(signed.user.name, check)

    def recheck(self, users: Collection[str]) -> None:
        """End the running calls of these users that are not allowed any more."""
        self._held.recheck(users)

    # ---- calls that are rejected ----

    def _reject(
        self, caller: Caller, path: str, call: Call, error: MqError, claimed: str = ""
    ) -> None:
        """Raise the error, or only log it if calls are observed.

        `claimed` is the user that the signature of the call names.
        """
        self.rejected += 1
        passes = self._passes(path)
        self._log.note(path, caller.source, error.message, who=_name_of(caller), passes=passes)
        if passes:
            return
        if self._audit is not None:
            who = Who.of(caller, call, claimed)
            self._audit.rejected(who, path, error.code.name, error.message)
        raise error

    def _passes(self, path: str) -> bool:
        """Return whether a rejected call is made, because calls are only observed."""
        return self._observe_only and not self._policy.always_rejects(path)

    def _note_guess(self, call: Call) -> None:
        if self._guesses is not None:
            self._guesses.failed(call)


def _name_of(caller: Caller) -> Identity | str:
    return caller.identity or "" if caller.user is None else f"user {caller.user.name}"


def _holder(call: Call) -> Caller:
    """Return the caller that its certificate names."""
    return Caller(holder_of(call), None, call.peer)
