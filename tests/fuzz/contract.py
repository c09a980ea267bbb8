"""The codes that the contracts list for each RPC, read from the comments of the .proto files.

A comment above an RPC counts for it, and for the RPCs below it that have none, up to an empty line.
The comment above a service counts for each of its RPCs, and so do the head of the file and the head
of the file that it refers to. "Codes: as for Pop" and "as Pop does" stand for the codes of Pop
of the same service.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from aerobee_wire.status import Code

PROTO = Path(__file__).resolve().parents[2] / "proto"
# Written as "TOPIC_NOT_EXIST (17)", or "(14: the broker is starting or stopping)".
LISTED = re.compile(r"\b([A-Z][A-Z_]+) \((\d+)[:)]")
RPC = re.compile(r"\s*rpc (\w+)\(")
SEE = re.compile(r"see (\S+\.proto)")
AS = re.compile(r"\bas (?:for )?([A-Z]\w+)(?: does)?\.")
SERVICE = re.compile(r"service (\w+) {")
# Each server may answer these to a caller that it limits, or that may not call.
OF_EACH_SERVER = {"NO_PERMISSION", "SYSTEM_BUSY", "FLOW_CONTROL"}


def listed(text: str) -> Iterator[tuple[str, int]]:
    """Yield each code that a text lists, with its number."""
    for name, number in LISTED.findall(text):
        yield name, int(number)


def wrong_numbers() -> list[str]:
    """Return each code in the contracts whose number is another one."""
    known = {code.name: int(code) for code in Code}
    return [
        f"{path.relative_to(PROTO)}: {name} ({number})"
        for path in sorted((PROTO / "aerobee").rglob("*.proto"))
        for name, number in listed(path.read_text("utf-8"))
        if known.get(name) != number
    ]


@cache
def codes(file: str) -> dict[str, frozenset[str]]:
    """Return the codes of each RPC in a file below proto/, by "Service/Rpc"."""
    head, _, body = (PROTO / file).read_text("utf-8").partition("\nsyntax")
    shared = PROTO / file if (see := SEE.search(head)) is None else (PROTO / file).parent / see[1]
    heads = head + shared.read_text("utf-8").partition("\nsyntax")[0]
    common = {name for name, _ in listed(heads)} | OF_EACH_SERVER
    found: dict[str, frozenset[str]] = {}
    of_service: set[str] = set()
    service, comment, is_open = "", "", False
    for line in body.splitlines():
        if match := SERVICE.match(line):
            service, of_service = match[1], {name for name, _ in listed(comment)}
        if line.strip().startswith("//"):
            comment, is_open = (comment if is_open else "") + line + "\n", True
        elif match := RPC.match(line):
            found[f"{service}/{match[1]}"] = frozenset(
                {
                    *(common | of_service),
                    *(name for name, _ in listed(comment)),
                    *(
                        name
                        for rpc in AS.findall(comment)
                        for name in found.get(f"{service}/{rpc}", ())
                    ),
                }
            )
            is_open = False
        elif not line.strip():
            comment, is_open = "", False
    if "BrokerAccessService" in body:  # "The same RPCs, on a broker."
        for name, each in list(found.items()):
            if name.startswith("Namesrv"):
                found[name.replace("Namesrv", "Broker")] = each
    return found
