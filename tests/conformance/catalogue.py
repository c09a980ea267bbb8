"""The acceptance catalogue: rows F1 to F29, and which official SDK passes what, as a table.

A scenario belongs to the row that its name begins with. `make conformance` writes the table into
docs/compatibility.md when all went as sdk.toml of each language says; `python -m
conformance.catalogue` (with `tests` on the path) writes it with the date that the page has.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from conformance.changes import CHANGES
from conformance.runner import SCENARIOS
from support.proxy.official_sdk import Inability, OfficialSdk, official_sdks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
BEGIN, END = "<!-- from here: make conformance -->\n", "<!-- to here: make conformance -->\n"

# A module declares its scenarios when it is imported; they start in this order, the longest first.
MODULES = (
    "lasting",
    "lite",
    "sending",
    "receiving",
    "transacting",
    "listening",
    "both_brokers",
    "access",
)

ROWS = {
    "F1": "a producer starts and ends; a client of two topics starts",
    "F2": "normal messages with tag, key, property and any UTF-8 body; ids are the client's",
    "F3": "a simple consumer gets each message once, unchanged, and nothing after the"
    " acknowledgement",
    "F4": "nothing to receive is an empty answer",
    "F5": "a message that is not acknowledged is redelivered after its invisible duration, as"
    " attempt 2",
    "F6": "the invisible duration can be changed; the old handle still acknowledges",
    "F7": "a late acknowledgement is refused with `INVALID_RECEIPT_HANDLE`",
    "F8": "at most 32 messages at once",
    "F9": "a push consumer gets each message once; its lease is renewed while a listener works for"
    " longer",
    "F10": "a failed message is delivered again, not before the retry delay of its group",
    "F11": "after the maximum of attempts it is a dead letter, with the reason that its consumer"
    " gave in headers",
    "F12": "order by message group, with one group and three, also when messages fail",
    "F13": "a message that its consumer gives up is dead-lettered, and the next is delivered",
    "F14": "redelivery to an ordered group begins with its first message that is not acknowledged",
    "F15": "delivery at a time, never early; a past time at once; more than 24 h refused",
    "F16": "a delayed message is recalled: it does not come, and a second recall fails",
    "F17": "a half message is visible after its commit, never after a rollback",
    "F18": "the checker of a producer is asked about a half message whose transaction was not"
    " ended, and its answer counts",
    "F19": r"filter by tag: `A\|\|B`, blanks, empty parts, tags of equal hash",
    "F20": "filter by SQL92; a text that cannot be read is refused",
    "F21": "two consumers of one group share the messages",
    "F22": "every group gets every message",
    "F23": "a message of another type than the topic takes is refused; a topic that came about by"
    " itself takes the type of its first message",
    "F24": "limits of body, properties, tag; the largest body arrives",
    "F25": "credentials and permissions",
    "F26": "consuming continues after `kill -9` of the proxy, and of the broker",
    "F27": "priority topics; Node.js takes the priority 0 for none",
    "F28": "lite topics: names, codes and suspensions, for which no SDK has a call; the rest is"
    " L1 to L20",
    "F29": "several messages in one request: one entry each",
    "L1": "a lite push consumer gets the lite topics that it subscribes to, while it does",
    "L4": "each lite topic comes in order, each message once",
    "L5": "two clients of a group share the messages; another group gets every one",
    "L6": "exclusive: the newest client takes a lite topic over; the former is notified, and"
    " does not take it back by its next synchronisation",
    "L7": "the quota of a client: one lite topic more is refused",
    "L8": "where a group begins: LAST, MIN, MAX, an offset, the last N, a time; a group without an"
    " offset, and one that consumed everything",
    "L9": "a client closes, and the next one gets what is sent from then on, once",
    "L10": "redelivery begins with the first message that was not acknowledged, with the attempt"
    " of each; other lite topics continue",
    "L11": "after the maximum of attempts a message is a dead letter with its lite topic, and the"
    " next continues",
    "L15": "500 and 10,000 lite topics of one client: each message once",
    "L16": "a listener works for longer than a lease: nothing comes again",
    "L17": "a lite topic that had no message for the TTL of its parent is gone; its subscribers get"
    " what is sent later",
    "L18": "a wildcard group gets every lite topic",
    "L19": "`kill -9` of proxies and brokers: consumers of lite topics continue, in order; nothing"
    " is lost, and nothing acknowledged comes again",
    "L20": "a simple consumer of lite topics",
    "C1": "two brokers: the messages of both arrive, message groups in order",
    "C2": "one of two brokers is killed: no send fails; what lies there comes when it is back",
    "C3": "one of two proxies is killed: clients that were given both continue, and no send fails",
    "C4": "a broker is added: after `aerobee topic rebalance` its queues get messages once the SDK"
    " asks for the route again, which it does every 30 s",
    "C5": "a broker is drained and removed (`aerobee broker drain --wait`): no send fails, nothing"
    " is lost",
    "C6": "send to receive with two brokers takes at most 1.2 times as long as with one (median)",
}
# Rows without a scenario: what their cells say.
RESTARTS = "F26"  # tests/fault/clients/test_sdk_restarts.py; with all versions in its campaign
LITE_KILLS = "L19"  # tests/fault/clients/test_sdk_lite_kills.py
LATENCY = "C6"  # test_latency_with_two_brokers.py
BY_HAND = ("F28", "F29")


def load() -> None:
    """Declares all scenarios."""
    for module in MODULES:
        importlib.import_module(f"conformance.scenarios.{module}")


def asked_for() -> list[tuple[str, str]]:
    """The scenarios, and the changes to a cluster, each with what it needs of an SDK: a change
    also, for that no send fails, that it tries again."""
    return [
        *((scenario.name, scenario.needs) for scenario in SCENARIOS),
        *((change.__name__, needs) for change in CHANGES for needs in ("", "retry")),
    ]


def row_of(scenario: str) -> str:
    """F12 of f12_messages_of_…; "" for none."""
    number = re.match(r"[cfl]\d+(?=_)", scenario)
    return number.group().upper() if number else ""


def cell(row: str, sdk: OfficialSdk, notes: list[str]) -> str:
    """What the table says; adds the causes of exceptions to the notes."""
    if row == RESTARTS:
        return "test"
    if row in BY_HAND:
        return "wire"
    if row == LATENCY:
        return "test"
    asked = [pair for pair in asked_for() if row_of(pair[0]) == row]
    if row == LITE_KILLS:
        asked = [("", "lite")]
    found = [sdk.inability(name, needs) for name, needs in asked]
    causes = list(dict.fromkeys(filter(None, found)))
    numbers = ", ".join(str(number_of(note(sdk, cause), notes)) for cause in causes)
    if not causes:
        return "test"
    return f"no ({numbers})" if all(found) else f"test, but ({numbers})"


def note(sdk: OfficialSdk, cannot: Inability) -> str:
    """A cause and whose fault it is."""
    versions = " and ".join(cannot.versions) or sdk.version
    language = sdk.name.removesuffix(f" {sdk.version}")
    whose = "its fault" if cannot.fault == "SDK" else "our limit"
    return (
        f"{language} {versions if cannot.versions else ''}".strip() + f", {whose}: {cannot.cause}"
    )


def number_of(text: str, notes: list[str]) -> int:
    if text not in notes:
        notes.append(text)
    return notes.index(text) + 1


def lines(seen: str) -> Iterator[str]:
    """The table and its notes; `seen`: the day of the run, as 2026-01-31."""
    sdks, notes = official_sdks(), list[str]()
    yield f"Seen on {seen}, by `make conformance`."
    yield ""
    yield "| | what is asked for | " + " | ".join(sdk.name for sdk in sdks) + " |"
    yield "|---" * (len(sdks) + 2) + "|"
    for row, asked in ROWS.items():
        cells = " | ".join(cell(row, sdk, notes) for sdk in sdks)
        yield f"| {row} | {asked} | {cells} |"
    carried = ("TLS, plaintext" if sdk.speaks_tls else "plaintext" for sdk in sdks)
    yield "| | carried over | " + " | ".join(carried) + " |"
    yield ""
    for number, text in enumerate(notes, 1):
        yield f"{number}. {text}"


def generated(seen: str) -> str:
    """What stands between the markers of the page."""
    return "".join(f"{line}\n" for line in lines(seen))


def date_of_page() -> str:
    seen = re.search(r"^Seen on (\S+),", PAGE.read_text("utf-8"), re.MULTILINE)
    return seen.group(1) if seen else "never"


def written(seen: str) -> str:
    """The page with the table of that day."""
    before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + generated(seen) + END + after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--today", action="store_true", help="the run was today")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    seen = today if parser.parse_args().today else date_of_page()
    load()
    PAGE.write_text(written(seen), "utf-8")


if __name__ == "__main__":
    main()
