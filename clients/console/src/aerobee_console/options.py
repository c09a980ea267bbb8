"""The options of a console, and the check that it may listen at its address."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from aerobee_console.masking import NO_MASK, Mask

DEFAULT_PORT = 8_082
DEFAULT_HOST = "127.0.0.1"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a console.

    Attributes:
        namesrvs: The addresses of the name servers.
        host: The address to listen on.
        port: The port; 0 for a free one.
        host_names: Further names under which browsers may call the console.
        read_only: Whether to refuse all changes and hide their buttons.
        read_only_reason: Why, as a sentence for a refused change.
        bodies: Whether to show the bodies of messages.
        mask: What to mask in messages.
        audit: Whether to show the audit logs.
        login: Whether visitors log in as users.
        tls: Whether the port of the console serves TLS.
        base_path: The path of the console below the root of its host, such as "/aerobee"; "" for
            the root.
        trusted_proxies: Networks of reverse proxies that serve TLS in front of the console. Other
            callers are refused.
        insecure: Why the console or its cluster is open to other machines, as a sentence; "" if
            neither is.
    """

    namesrvs: tuple[str, ...]
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    host_names: tuple[str, ...] = ()
    read_only: bool = False
    read_only_reason: str = "the console runs with --read-only: it makes no changes"
    bodies: bool = True
    mask: Mask = NO_MASK
    audit: bool = True
    login: bool = False
    tls: bool = False
    base_path: str = ""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    insecure: str = ""

    @property
    def secure(self) -> bool:
        """Return whether browsers use HTTPS."""
        return self.tls or bool(self.trusted_proxies)

    @property
    def no_text_search(self) -> str:
        """The reason why messages cannot be searched by text, or ""."""
        if not self.bodies:
            return "the console runs with --no-bodies"
        return "the console runs with --mask" if self.mask.paths else ""

    @property
    def names(self) -> frozenset[str]:
        """The values of the header Host, without a port, that are accepted."""
        return LOOPBACK_NAMES | {name.lower() for name in (self.host, *self.host_names)}
