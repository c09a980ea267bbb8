"""A network of hosts that are network namespaces, on one bridge, of which a test cuts, slows and
unplugs links. Needs root, `ip`, `nft`, `tc` and `nsenter`.

The bridge lies in a namespace too, so that nothing outside changes, and networks side by side may
use the same addresses. A process that was started by `Network.enter` sees its host's address and
the others', and nothing else.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from typing import Self

import pytest

NUMBERS = itertools.count()
SUBNET = "10.77.0"
# Datagrams of these pairs of addresses are dropped between two ports of the bridge.
RULES = """
table bridge links {
  set cut { type ipv4_addr . ipv4_addr; }
  chain forward {
    type filter hook forward priority 0;
    ip saddr . ip daddr @cut drop
  }
}
"""


def require_namespaces() -> None:
    """Skips the test where networks cannot be made; fails it when AEROBEE_REQUIRE_NETNS is set."""
    problem = _problem()
    if problem and os.environ.get("AEROBEE_REQUIRE_NETNS"):
        pytest.fail(f"AEROBEE_REQUIRE_NETNS is set, but {problem}")
    if problem:
        pytest.skip(problem)


def _problem() -> str:
    if os.geteuid() != 0:
        return "network namespaces are made by root alone"
    for command, package in (("ip", "iproute2"), ("tc", "iproute2"), ("nft", "nftables")):
        if shutil.which(command) is None:
            return f"there is no `{command}` on PATH (on Debian: apt-get install {package})"
    try:
        with Network() as network:
            network.add("host")
    except subprocess.CalledProcessError as error:
        return f"a network namespace cannot be made: {error.stderr.strip()}"
    return ""


class Network:
    """`addresses`: of the hosts, by name. The end of `with` deletes all namespaces; one whose
    processes still run goes with the last of them."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        self._tag = f"aerobee-{os.getpid()}-{next(NUMBERS)}"
        self._cut: set[tuple[str, str]] = set()
        self._namespaces: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._make("switch")
            self._in_switch("ip", "link", "add", "name", "lan", "type", "bridge")
            self._in_switch("ip", "link", "set", "lan", "up")
            self._in_switch("nft", "-f", "-", text=RULES)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        while self._namespaces:
            _run("ip", "netns", "delete", self._namespaces.pop())

    def add(self, host: str) -> str:
        """A host of this name, of up to ten letters; returns its address."""
        self._make(host)
        address = f"{SUBNET}.{len(self.addresses) + 1}"
        space = self._space(host)
        self._in_switch(
            *("ip", "link", "add", "name", _port(host), "type", "veth"),
            *("peer", "name", "eth0", "netns", space),
        )
        self._in_switch("ip", "link", "set", _port(host), "master", "lan", "up")
        _run("ip", "-netns", space, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _run("ip", "-netns", space, "link", "set", device, "up")
        self.addresses[host] = address
        return address

    def enter(self, host: str) -> tuple[str, ...]:
        """What a command starts with that is to run on this host."""
        return ("nsenter", f"--net=/run/netns/{self._space(host)}", "--")

    # ---- faults ----

    def cut(self, source: str, target: str) -> None:
        """Nothing that `source` sends reaches `target` from now on; the other way is left."""
        pair = (self.addresses[source], self.addresses[target])
        if pair not in self._cut:
            self._cut.add(pair)
            self._in_switch("nft", "add", "element", "bridge", "links", "cut", _element(pair))

    def join(self, source: str, target: str) -> None:
        """Takes a cut back."""
        pair = (self.addresses[source], self.addresses[target])
        if pair in self._cut:
            self._cut.remove(pair)
            self._in_switch("nft", "delete", "element", "bridge", "links", "cut", _element(pair))

    def unplug(self, host: str) -> None:
        """Nobody hears it any more, nor it anybody; no connection is told."""
        self._in_switch("ip", "link", "set", _port(host), "down")

    def plug(self, host: str) -> None:
        self._in_switch("ip", "link", "set", _port(host), "up")

    def slow(self, host: str, bytes_per_s: int) -> None:
        """It gets no more than that, queued for up to 2 s. Until `fast`."""
        self._in_switch(
            *("tc", "qdisc", "add", "dev", _port(host), "root"),
            *("tbf", "rate", f"{bytes_per_s * 8}bit", "burst", "4kb", "latency", "2s"),
        )

    def fast(self, host: str) -> None:
        self._in_switch("tc", "qdisc", "delete", "dev", _port(host), "root")

    # ---- namespaces ----

    def _space(self, host: str) -> str:
        return f"{self._tag}-{host}"

    def _make(self, host: str) -> None:
        _run("ip", "netns", "add", self._space(host))
        self._namespaces.append(self._space(host))

    def _in_switch(self, *command: str, text: str | None = None) -> None:
        _run(*self.enter("switch"), *command, text=text)


def _port(host: str) -> str:
    """Its end of the link, on the bridge; the kernel takes 15 letters."""
    return f"to-{host}"


def _element(pair: tuple[str, str]) -> str:
    return f"{{ {pair[0]} . {pair[1]} }}"


def _run(*command: str, text: str | None = None) -> None:
    """Raises CalledProcessError, FileNotFoundError."""
    subprocess.run(command, check=True, capture_output=True, text=True, input=text)
