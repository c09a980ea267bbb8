"""Authenticate a call by the signature that the official SDKs put into its metadata.

    authorization: MQv2-HMAC-SHA1 Credential=NAME[/…], SignedHeaders=x-mq-date-time, Signature=HEX

HEX is the HMAC-SHA1 of the value of x-mq-date-time, keyed with the user's secret. The signature
does not cover anything else. The time is not checked, because each SDK writes it in another format,
and some SDKs use local time without an offset. So an attacker who reads the metadata of one call
can replay the signature. Off loopback, a signature counts over TLS only, unless
authenticationRequireTls is false.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from functools import lru_cache

import structlog
from aerobee_foreign.apache.rocketmq.v2.definition_pb2 import Code

from aerobee_chassis.clock import Clock
from aerobee_chassis.rpc.call import Call
from aerobee_chassis.rpc.guesses import Guesses
from aerobee_proxy.access.users import UserSource
from aerobee_proxy.cluster.log_throttle import LogThrottle
from aerobee_proxy.counts import ProxyCounts
from aerobee_proxy.v2.status import Refused
from aerobee_wire.access.users import User
from aerobee_wire.certificates import needs_no_tls

AUTHORIZATION_KEY = "authorization"
DATE_TIME_KEY = "x-mq-date-time"
SCHEME = "MQv2-HMAC-SHA1"
LONGEST_HEADER = 1_024
MOST_VERIFIED = 1_000  # signatures that are not checked again; one takes some 500 bytes

# The secret of this user replaces that of an unknown user, so that the response time does not
# reveal which users exist.
_NOBODY = User("", (b"nobody",), enabled=False)


class WrongCredentials(Refused):
    """The user is unknown or disabled, or the secret key is wrong. All are answered alike."""

    def __init__(self, name: str) -> None:
        super().__init__(
            Code.UNAUTHORIZED,
            f"user {name[:64]!r} is unknown or disabled, or the secret key is wrong: check both",
        )


class Authentication:
    """Check the signatures of calls to one process.

    If `requires_tls` is true, callers on other machines must use TLS. `guesses` delays the answers
    to wrong signatures, on all ports of the process.
    """

    def __init__(
        self, users: UserSource, counts: ProxyCounts, clock: Clock, *, requires_tls: bool = True
    ) -> None:
        self.users = users
        self._requires_tls = requires_tls
        self.guesses = Guesses(clock)
        self._counts = counts
        self._log_throttle = LogThrottle(clock)
        # The user of each header and time with a valid signature. SDKs sign the time in seconds.
        self._verified: dict[tuple[str, str], User] = {}

    def check(self, call: Call, metadata: Mapping[str, str]) -> User:
        """Return the user who signed the call with this `metadata`.

        Raises Refused with the code UNAUTHORIZED if the signature is missing or wrong, or the user
        is unknown or disabled. The code is INTERNAL_SERVER_ERROR until the users are known; SDKs
        then retry.
        """
        if not self.users.complete:
            raise Refused(
                Code.INTERNAL_SERVER_ERROR,
                "this proxy has not received the users from a name server yet; retry",
            )
        try:
            self.check_tls(call)
            return self.current(metadata)
        except Refused as refusal:
            if isinstance(refusal, WrongCredentials):
                self.guesses.failed(call)
            self._counts.unauthorized += 1
            self._log(refusal.message, call.peer)
            raise

    def check_tls(self, call: Call) -> None:
        """Raise Refused with the code UNAUTHORIZED if the call must use TLS, and does not."""
        if not self._requires_tls or _is_local(call.peer) or call.is_encrypted:
            return
        raise Refused(
            Code.UNAUTHORIZED,
            "a signature counts over TLS only, because it can be read and used again: let the "
            "client use TLS, or set authenticationRequireTls=false at the proxy",
        )

    def current(self, metadata: Mapping[str, str]) -> User:
        """Return the user who signed a running call, as it is now. Do not count or log a refusal.

        Raises Refused with the code UNAUTHORIZED if the user was deleted or disabled, or does not
        have the secret any more with which it signed.
        """
        header, signed = metadata.get(AUTHORIZATION_KEY, ""), metadata.get(DATE_TIME_KEY, "")
        user = self._verified.get((header, signed))
        # A user with another secret or status is another object.
        if user is None or user is not self.users.get(user.name):
            user = self._verify(header, signed)
            if len(self._verified) >= MOST_VERIFIED:
                self._verified.clear()
            if len(header) + len(signed) <= LONGEST_HEADER:
                self._verified[header, signed] = user
        return user

    def _verify(self, header: str, signed: str) -> User:
        """Return the user with this valid signature of the text `signed`. Raises Refused."""
        fields = parse(header)
        name = _name_in(fields)
        if not name:
            raise Refused(
                Code.UNAUTHORIZED, "the call is not signed: give the client an access key"
            )
        if not signed:
            raise Refused(
                Code.UNAUTHORIZED, f"the metadata lacks {DATE_TIME_KEY}, which is signed: send it"
            )
        user = self.users.get(name)
        given = fields.get("signature", "").lower().encode("utf-8", "replace")
        matches = [
            hmac.compare_digest(signature(secret, signed).encode(), given)
            for secret in (user or _NOBODY).secrets
        ]
        if not any(matches) or user is None or not user.enabled:
            raise WrongCredentials(name)
        return user

    def _log(self, reason: str, peer: str) -> None:
        if self._log_throttle.allow("") is not None:  # a refused client retries many times
            structlog.get_logger().warning(
                "call_refused", reason=reason, peer=peer, refused=self._counts.unauthorized
            )


@lru_cache(maxsize=1_024)  # each call asks for its connection
def _is_local(peer: str) -> bool:
    return needs_no_tls(peer.rpartition(":")[0] or "localhost")


def parse(header: str) -> Mapping[str, str]:
    """Return the fields of an authorization header, with names in lower case.

    Return an empty mapping if the header has another scheme.
    """
    scheme, _, rest = header[:LONGEST_HEADER].strip().partition(" ")
    if scheme != SCHEME:
        return {}
    pairs = (part.strip().partition("=") for part in rest.split(","))
    return {name.lower(): value for name, _, value in pairs}


def claimed_user(metadata: Mapping[str, str]) -> str:
    """Return the user that the signature of a call names, or "". This proves nothing."""
    return _name_in(parse(metadata.get(AUTHORIZATION_KEY, "")))


def _name_in(fields: Mapping[str, str]) -> str:
    return fields.get("credential", "").partition("/")[0]


def signature(secret: bytes, signed: str) -> str:
    """Return the HMAC-SHA1 of `signed` in lower-case hex."""
    return hmac.digest(secret, signed.encode("utf-8", "replace"), "sha1").hex()
