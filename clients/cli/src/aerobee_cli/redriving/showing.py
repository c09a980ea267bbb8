"""Print the result of a redrive on stdout, as one JSON object or a table of unsent dead letters.

The object is written during the redrive. Neither form keeps all outcomes in memory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from aerobee_cli import output
from aerobee_cli.output import Column
from aerobee_client.admin.redriving.outcome import Outcome, Status

# Maximum rows of a table.
TABLE_ROWS = 1_000
_TITLES = ("message id", "offset message id", "tag", "topic", "status", "error")
_KEYS = (*(title.replace(" ", "_") for title in _TITLES), "perhaps_twice")


class Shown(Protocol):
    def add(self, outcomes: Iterable[Outcome]) -> None: ...
    def end(self, result: Mapping[str, Any]) -> None:
        """Print the end. `result` has the names and numbers of the whole redrive."""


class JsonObject:
    """One JSON object: the array "outcomes" with an item on each line, and then the result.

    Dead letters that earlier runs sent are only counted.
    """

    def __init__(self) -> None:
        self._separator = '{"outcomes": [\n'

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.status is not Status.SENT_BEFORE:
                item = outcome._asdict()
                shown = {key: item[key] for key in _KEYS}
                sys.stdout.write(self._separator + json.dumps(shown, ensure_ascii=False))
                self._separator = ",\n"

    def end(self, result: Mapping[str, Any]) -> None:
        start = '{"outcomes": [' if self._separator.startswith("{") else "\n"
        rest = json.dumps(dict(result), ensure_ascii=False)
        sys.stdout.write(f"{start}],\n{rest.removeprefix('{')}\n")
        sys.stdout.flush()


class Table:
    """A table of the dead letters that were not sent; in a dry run, of those that would be sent."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._more = 0

    def add(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            if outcome.status in (Status.SENT, Status.SENT_BEFORE):
                continue
            if len(self._rows) < TABLE_ROWS:
                self._rows.append(outcome._asdict())
            else:
                self._more += 1

    def end(self, result: Mapping[str, Any]) -> None:
        if self._rows:
            columns = [Column(title, title.replace(" ", "_")) for title in _TITLES]
            output.write_table(self._rows, columns)
        if self._more:
            output.note(f"{self._more:,} more are not shown: --json lists all")
