"""Sign a call with a secret key, and check the signature. This module does no I/O.

    authorization: AEROBEE-HMAC-SHA256 NAME/SESSION COUNTER TIME DIGEST SIGNATURE

- NAME is the user, with characters outside of ASCII as %XX.
- SESSION is a random number of the signing client, in hex.
- COUNTER is greater for each call of the session, from 1 on.
- TIME is the time of the call, in milliseconds since the epoch.
- DIGEST is the SHA-256 of the serialized request, in hex. An RPC with a stream of requests has the
  digest of no bytes. Over TLS, a request of more than ALWAYS_COVERED bytes has "-" instead: TLS
  already detects each change on the way, and hashing takes a tenth of the time of a batch.
- SIGNATURE is the HMAC-SHA256 of the path of the RPC and all of these fields, in hex.

A signature counts once, on one path, for one request, and within VALID_MS. Only a signature with
"-" counts for each large request on its path within that time. TLS protects these requests from
repetition, too, and equal headers take less time to send and to check.

A server keeps one window of counters for each session, as IPsec does (RFC 4303, 3.4.3), and not
each signature. When
all signatures of a session are too old, only its highest counter remains: the clock may be set
back, and make them valid again.
"""

from __future__ import annotations

import hmac
import itertools
import os
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from aerobee_wire.access.users import User
from aerobee_wire.status import Code, MqError

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

AUTHORIZATION_KEY = "authorization"
SCHEME = "AEROBEE-HMAC-SHA256"
VALID_MS = 30_000  # how far the clocks of client and server may differ

ALWAYS_COVERED = 16_384  # bytes of a request; their SHA-256 takes 8 to 20 µs
UNCOVERED = "-"
# How long a client sends one signature with its large requests. It is less than VALID_MS, because a
# call may wait, and the clocks may differ.
REPEATED_MS = 10_000

MAX_HEADER = 2_048  # characters; a name of 128 characters may take 1,536 of them
WINDOW = 4_096  # calls of one session that may overtake each other
MAX_SESSIONS = 10_000  # of one user
MAX_ENDED = 10_000  # sessions of all users; an ended one takes some 250 bytes

_SEEN = (1 << WINDOW) - 1
_BLOCK = sha256().block_size

# The secret of this user replaces that of an unknown user, so that the response time does not
# reveal which users exist.
_NOBODY = User("", (b"nobody",), enabled=False)


class NotAuthenticated(MqError):
    """The signature of a call does not count. The error is about the key of the metadata."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.NO_PERMISSION, message, about=AUTHORIZATION_KEY)


class WrongCredentials(NotAuthenticated):
    """The user is unknown or disabled, or the secret key is wrong. All are answered alike."""

    def __init__(self, name: str) -> None:
        super().__init__(f"user {name[:64]!r} is unknown or disabled, or the secret key is wrong")


class Signer:
    """Sign the calls of one client. Use the object on one thread.

    Args:
        name: The user.
        secret: Returns the present secret key.
        now_ms: The clock, in milliseconds since the epoch.
        over_tls: Whether the client calls over TLS only, so that large requests are not covered.
    """

    def __init__(
        self,
        name: str,
        secret: Callable[[], bytes],
        now_ms: Callable[[], int],
        *,
        over_tls: bool = False,
    ) -> None:
        self._secret = secret
        self._now_ms = now_ms
        self._over_tls = over_tls
        self._prefix = f"{quote(name)}/{os.urandom(8).hex()}"
        self._counter = itertools.count(1)
        self._known = secret()
        self._repeated: dict[str, tuple[str, int, bytes]] = {}  # header, time and key, by path

    def key_changed(self) -> bool:
        """Return whether the secret key is another one than at the last call, or at the start."""
        former, self._known = self._known, self._secret()
        return former != self._known

    def sign(self, path: str, request: bytes = b"") -> str:
        """Return the header of one call. `path` is "/package.Service/Method"."""
        now_ms, secret = self._now_ms(), self._secret()
        if not (self._over_tls and len(request) > ALWAYS_COVERED):
            return self._signed(path, sha256(request).hexdigest(), now_ms, secret)
        repeated = self._repeated.get(path)
        if repeated is not None:
            header, signed_ms, key = repeated
            if 0 <= now_ms - signed_ms < REPEATED_MS and key == secret:
                return header
        header = self._signed(path, UNCOVERED, now_ms, secret)
        self._repeated[path] = header, now_ms, secret
        return header

    def _signed(self, path: str, digest: str, now_ms: int, secret: bytes) -> str:
        fields = f"{self._prefix} {next(self._counter)} {now_ms} {digest}"
        return f"{SCHEME} {fields} {_signature(secret, path, fields)}"


def claimed_user(header: str) -> str:
    """Return the user that a header names, or "". This proves nothing."""
    scheme, _, fields = header[:MAX_HEADER].partition(" ")
    return unquote(fields.partition(" ")[0].partition("/")[0]) if scheme == SCHEME else ""


class Signed(NamedTuple):
    """A call whose signature counts.

    `secret` is the key that signed, and `digest` is the SHA-256 of the request in hex, or
    UNCOVERED.
    """

    user: User
    secret: bytes
    digest: str

    def __repr__(self) -> str:
        return f"Signed(user={self.user!r}, digest={self.digest!r})"

    @property
    def needs_tls(self) -> bool:
        """Return whether the signature counts over TLS only, which protects the request."""
        return self.digest == UNCOVERED

    def covers(self, request: bytes) -> bool:
        """Return whether this is the request that was signed, or one that TLS must protect."""
        if self.digest == UNCOVERED:
            return len(request) > ALWAYS_COVERED
        return sha256(request).hexdigest() == self.digest


class Signatures:
    """Check the signatures of calls to one server.

    Args:
        user_of: Returns the user of a name, or None.
        now_ms: The clock, in milliseconds since the epoch.
        monotonic_ms: A clock that never goes back. Sessions end by it.
    """

    def __init__(
        self,
        user_of: Callable[[str], User | None],
        now_ms: Callable[[], int],
        monotonic_ms: Callable[[], int],
    ) -> None:
        self._user_of = user_of
        self._now_ms = now_ms
        self._monotonic_ms = monotonic_ms
        self._sessions: dict[str, _Session] = {}  # by NAME/SESSION
        self._counts: dict[str, int] = {}  # of the sessions, by name
        # Highest counter and time of each session that ended last, by NAME/SESSION.
        self._ended: dict[str, tuple[int, int]] = {}
        self._forgotten_ms = 0  # the greatest time of the sessions that ended before these
        self._next_purge_ms = 0

    def check(self, header: str, path: str) -> Signed | None:
        """Return who signed a call. None if the header is empty or has another scheme.

        Raises:
            WrongCredentials: The signature is wrong.
            NotAuthenticated: The signature is too old, or was used before.
            MqError: SYSTEM_BUSY, the user has too many sessions.
        """
        parts = header.split(" ", 6)  # a longer header is not separated further
        if parts[0] != SCHEME:
            return None
        if len(header) > MAX_HEADER or len(parts) != 6:
            raise _malformed()
        _, credential, count, signed_ms, digest, given = parts
        if not _is_number(count) or not _is_number(signed_ms):
            raise _malformed()
        counter, time_ms, now_ms = int(count), int(signed_ms), self._now_ms()
        late_ms = now_ms - time_ms
        if not -VALID_MS <= late_ms <= VALID_MS:
            raise NotAuthenticated(
                f"the call was signed {abs(late_ms) / 1_000:.0f} s "
                f"{'ago' if late_ms > 0 else 'in the future'}, by the clock of this server: set "
                f"the clocks; they may differ by {VALID_MS // 1_000} s"
            )
        session = self._sessions.get(credential)
        name = unquote(credential.partition("/")[0]) if session is None else session.name
        user = self._user_of(name)
        repeated = None if session is None else session.repeated.get(path)
        if repeated is not None and repeated.header == header and repeated.signed.user is user:
            return repeated.signed
        fields, given_bytes = header[len(SCHEME) + 1 : -len(given) - 1], given.encode()
        secret = None
        for each in (user or _NOBODY).secrets:
            if hmac.compare_digest(_signature(each, path, fields).encode(), given_bytes):
                secret = each
        if secret is None or user is None or not user.enabled:
            raise WrongCredentials(name)
        monotonic_ms = self._monotonic_ms()
        if session is None:
            self._purge(monotonic_ms)
            session = self._opened(credential, name, counter, time_ms, now_ms)
        elif digest != UNCOVERED and not session.take(counter):
            raise _used()
        session.extend(time_ms, monotonic_ms + VALID_MS - late_ms)
        signed = Signed(user, secret, digest)
        if signed.needs_tls:
            session.repeated[path] = _Repeated(header, signed)
        return signed

    def renewed(self, signed: Signed) -> Signed:
        """Return the signature of a running call, with its user as it is now.

        It is the same object if the user has not changed.

        Raises:
            WrongCredentials: The user was deleted or disabled, or does not have the secret key any
                more.
        """
        user = self._user_of(signed.user.name)
        if user is signed.user:
            return signed
        if user is None or not user.enabled or signed.secret not in user.secrets:
            raise WrongCredentials(signed.user.name)
        return signed._replace(user=user)

    def _opened(
        self, credential: str, name: str, counter: int, time_ms: int, now_ms: int
    ) -> _Session:
        """Add a session in which a signature was used. Raises the errors of `check`."""
        highest, _ = self._ended.get(credential, (None, 0))
        if highest is None and time_ms <= self._forgotten_ms:
            wait_s = max(1, (self._forgotten_ms - now_ms) // 1_000 + 1)
            raise NotAuthenticated(
                "the clock of this server was set back, and the signature may have been used: "
                f"retry in {wait_s} s, or restart the server"
            )
        session = _Session(name, counter) if highest is None else _Session(name, highest, _SEEN)
        if highest is not None and not session.take(counter):
            raise _used()
        if self._counts.get(name, 0) >= MAX_SESSIONS:
            raise MqError(
                Code.SYSTEM_BUSY,
                f"user {name!r} has {MAX_SESSIONS} clients: close some, or use more users",
            )
        self._ended.pop(credential, None)
        self._counts[name] = self._counts.get(name, 0) + 1
        self._sessions[credential] = session
        return session

    def _purge(self, monotonic_ms: int) -> None:
        """End sessions whose signatures are all too old."""
        if monotonic_ms < self._next_purge_ms:
            return
        self._next_purge_ms = monotonic_ms + VALID_MS
        ended = [
            (credential, session)
            for credential, session in self._sessions.items()
            if session.end_ms < monotonic_ms
        ]
        for credential, session in ended:
            del self._sessions[credential]
            self._counts[session.name] -= 1
            if not self._counts[session.name]:
                del self._counts[session.name]
            self._ended[credential] = session.highest, session.newest_ms
        for credential in list(itertools.islice(self._ended, max(0, len(self._ended) - MAX_ENDED))):
            _, newest_ms = self._ended.pop(credential)
            self._forgotten_ms = max(self._forgotten_ms, newest_ms)


class _Repeated(NamedTuple):
    """The last signature without a digest on a path, with its header."""

    header: str
    signed: Signed


class _Session:
    """The signatures of one session that were used. Bit n is the counter `highest - n`.

    `newest_ms` is the greatest time of a signature, and `end_ms` is the monotonic time after which
    all of them are too old. `repeated` has the last one without a digest, by path.
    """

    __slots__ = ("_seen", "end_ms", "highest", "name", "newest_ms", "repeated")

    def __init__(self, name: str, highest: int, seen: int = 1) -> None:
        self.name = name
        self.newest_ms = 0
        self.end_ms = 0
        self.highest = highest
        self.repeated: dict[str, _Repeated] = {}
        self._seen = seen

    def take(self, counter: int) -> bool:
        """Return whether a counter is new, and note that it was used."""
        ahead = counter - self.highest
        if ahead > 0:
            self._seen = ((self._seen << ahead) | 1) & _SEEN if ahead < WINDOW else 1
            self.highest = counter
        elif -ahead >= WINDOW or self._seen >> -ahead & 1:
            return False
        else:
            self._seen |= 1 << -ahead
        return True

    def extend(self, time_ms: int, end_ms: int) -> None:
        """Note a signature of this time, which is too old after `end_ms`."""
        self.newest_ms = max(self.newest_ms, time_ms)
        self.end_ms = max(self.end_ms, end_ms)


def _signature(secret: bytes, path: str, fields: str) -> str:
    """Return the HMAC-SHA256 of the scheme, the path and the fields, in hex."""
    inner, outer = _begun(secret, path)
    inner, outer = inner.copy(), outer.copy()
    inner.update(fields.encode())
    outer.update(inner.digest())
    return outer.hexdigest()


# For each call of a user, because `hmac.digest` takes 2.1 µs, and copies of these take 1.0 µs. A
# pair takes some 700 bytes.
@lru_cache(maxsize=1_024)
def _begun(secret: bytes, path: str) -> tuple[Hash, Hash]:
    """Return the two hashes of an HMAC (RFC 2104), the first one with the scheme and the path."""
    key = secret if len(secret) <= _BLOCK else sha256(secret).digest()
    key = key.ljust(_BLOCK, b"\0")
    inner, outer = (sha256(bytes(byte ^ pad for byte in key)) for pad in (0x36, 0x5C))
    inner.update(f"{SCHEME} {path} ".encode())
    return inner, outer


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20


def _used() -> NotAuthenticated:
    return NotAuthenticated("this signature was used before: sign each call of its own")


def _malformed() -> NotAuthenticated:
    return NotAuthenticated(f"the metadata {AUTHORIZATION_KEY!r} is malformed: use this client")
