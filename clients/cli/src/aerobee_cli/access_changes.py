"""Show a change of users or policies, and the processes that it has not reached."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from aerobee_cli import output
from aerobee_cli.options import end
from aerobee_wire.printable import printable

if TYPE_CHECKING:
    from aerobee_client.admin.descriptions import AccessChange


def show(done: str, change: AccessChange, more: Mapping[str, str], *, as_json: bool) -> None:
    """Print what was done, and `more` results. Exit with INCOMPLETE if a process lacks it."""
    item = {"changed_at": change.changed_at, "lacking": dict(change.lacking), **more}
    if as_json:
        output.show_one(item, as_json=True)
    else:
        print(done)
        for key, value in more.items():
            print(printable(f"{key.replace('_', ' ')}: {value}"))
    end(f"{process} does not have it: {reason}" for process, reason in change.lacking.items())
