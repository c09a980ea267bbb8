"""Describe who makes a call: the holder of a certificate, or a user who signed the call."""

from __future__ import annotations

from typing import NamedTuple

from aerobee_wire.access.policies import LIST, TOPIC, Need, topic_need
from aerobee_wire.access.signature import Signed
from aerobee_wire.access.users import User
from aerobee_wire.identity import Identity


class Caller(NamedTuple):
    """The caller of an RPC.

    `identity` is the holder of the verified certificate, or None if it has no role. It is also None
    if the caller `signed` the call as a user, because its role does not count then. `source` is the
    "host:port" of the caller.
    """

    identity: Identity | None = None
    signed: Signed | None = None
    source: str = ""

    @property
    def user(self) -> User | None:
        return None if self.signed is None else self.signed.user

    def may(self, need: Need) -> bool:
        """Return whether the caller's policies allow something. Each role has each right."""
        return self.signed is None or self.signed.user.may(need, self.source)

    def sees(self, kind: str, name: str) -> bool:
        """Return whether a list for this caller contains a topic or a group."""
        if self.signed is None:  # a list has thousands of names
            return True
        return self.may(topic_need(name, LIST) if kind == TOPIC else Need(kind, name, (LIST,)))


# A caller whose role alone counts, as on a port that checks no users.
ANYBODY = Caller()
