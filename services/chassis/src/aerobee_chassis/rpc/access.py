"""Check the certificates of callers, for a server whose port requires one.

A policy decides (`aerobee_wire.permissions`). This module finds out who calls, logs rejected calls,
and lets them pass if they are only to be observed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import structlog

from aerobee_chassis.rpc.call import Call
from aerobee_wire.identity import Identity, identity_of
from aerobee_wire.status import MqError

_MOST_LOGGED = 10_000  # callers and RPCs; an entry takes some 200 bytes


class Policy(Protocol):
    """Decide who may call an RPC. `path` is "/package.Service/Method"."""

    def missing(self, paths: Iterable[str]) -> Sequence[str]:
        """Return those paths for which the policy has no decision."""

    def always_rejects(self, path: str) -> bool:
        """Return whether other callers are rejected even if calls are only observed."""

    def admit(self, caller: Identity | None, path: str) -> None:
        """Check a caller before its request is read. Raises MqError."""

    def authorize(self, caller: Identity | None, path: str, request: Any) -> None:
        """Check the request of a caller that `admit` has admitted. Raises MqError."""


class Access:
    """Check the calls of one server.

    If `enforced` is false, no call is checked, because the port does not require certificates.
    With `observe_only`, calls are checked and logged, but not rejected, unless the policy always
    rejects them.
    """

    def __init__(self, policy: Policy, *, enforced: bool, observe_only: bool = False) -> None:
        self.enforced = enforced
        self._policy = policy
        self._observe_only = observe_only
        self._logged: set[tuple[Identity | str, str]] = set()
        self.rejected = 0  # calls that were rejected, or would be

    def cover(self, paths: Iterable[str]) -> None:
        """Raise TypeError if an RPC has no decision, so that a new RPC is not open by mistake."""
        if missing := self._policy.missing(paths):
            raise TypeError(f"no row in the table of permissions: {', '.join(missing)}")

    def admit(self, path: str, call: Call) -> None:
        """Check a caller before its request is read. Raises MqError."""
        self._check(self._policy.admit, path, call)

    def authorize(self, path: str, call: Call, request: Any) -> None:
        """Check a request after it was read. Raises MqError."""

        def authorize(caller: Identity | None, path: str) -> None:
            self._policy.authorize(caller, path, request)

        self._check(authorize, path, call)

    def _check(self, check: Callable[[Identity | None, str], None], path: str, call: Call) -> None:
        caller = _identity_of(call.certificate_uris)
        try:
            check(caller, path)
        except MqError as error:
            self.rejected += 1
            passes = self._observe_only and not self._policy.always_rejects(path)
            self._log(caller, path, call.peer, error.message, passes=passes)
            if not passes:
                raise

    def _log(
        self, caller: Identity | None, path: str, peer: str, reason: str, *, passes: bool
    ) -> None:
        """Log a rejected call once for each caller and RPC: a rejected client may retry forever.

        A caller without an identity is known by its host, because its port changes.
        """
        key = caller or peer.rpartition(":")[0], path
        if key in self._logged:
            return
        if len(self._logged) >= _MOST_LOGGED:
            self._logged.clear()
        self._logged.add(key)
        event = "call_would_be_rejected" if passes else "call_rejected"
        structlog.get_logger().warning(
            event, caller=str(caller or ""), rpc=path, peer=peer, reason=reason
        )


@lru_cache(maxsize=1_024)  # each call has them, and a connection makes many calls
def _identity_of(uris: tuple[str, ...]) -> Identity | None:
    return identity_of(uris)
