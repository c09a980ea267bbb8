"""Define quotas: how much a user, a client or an address may send and receive a second.

The subject of a quota is "User:NAME", "Client:ID" or "Address:HOST". The name * is the default of
each user, client or address without a quota of its own. This module does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

from aerobee_wire.status import invalid_parameter

USER, CLIENT, ADDRESS = KINDS = ("User", "Client", "Address")
DEFAULT = "*"
MAX_RATE = 2**53  # exact in JSON and in a float
MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class Rates:
    """Amounts a second; 0: unlimited. Bytes are those of bodies, or of records when received."""

    calls: int = 0
    messages_in: int = 0  # sent by the client
    bytes_in: int = 0
    messages_out: int = 0  # received by the client
    bytes_out: int = 0


@dataclass(frozen=True, slots=True)
class Quota:
    kind: str  # one of KINDS
    name: str
    rates: Rates

    @property
    def subject(self) -> str:
        return f"{self.kind}:{self.name}"


def parse_subject(text: str) -> tuple[str, str]:
    """Return the kind and the name of a subject. Raises MqError with INVALID_PARAMETER."""
    kind, _, name = text.partition(":")
    if kind not in KINDS or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise invalid_parameter(
            f"invalid subject {text[:64]!r} of a quota: write User:NAME, Client:ID or "
            "Address:HOST, with the name * for the default",
            about="subject",
        )
    return kind, name


def check_rates(rates: Rates) -> None:
    """Raise MqError with INVALID_PARAMETER if a rate is not valid, or if none is limited."""
    values = {name: getattr(rates, name) for name in Rates.__slots__}
    for name, value in values.items():
        if not 0 <= value <= MAX_RATE:
            raise invalid_parameter(f"invalid rate {name}={value}: use 0 to 2^53", about=name)
    if not any(values.values()):
        raise invalid_parameter(
            "the quota limits nothing: give a rate, or delete the quota", about="quota"
        )
