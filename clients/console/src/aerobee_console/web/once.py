"""Make the change of a form once, also if a browser sends the form twice.

Without scripts, a double click on a button sends a form twice, and the browser shows the second
answer. Each form has an id of its own. The second request shows the outcome of the first one. The
outcomes are in memory. Another process of the console does not know them, but it also refuses the
form, because the token of the form is that of the process which made it.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from aerobee_wire.status import MqError

FORM_FIELD = "form_id"
KEPT_MS = 10 * 60_000
MAX_KEPT = 100  # outcomes of one user; a result has a few lines for each queue at most


class Outcome(Protocol):
    @property
    def incomplete(self) -> Sequence[str]:
        """The failed parts of a change, which a user repeats to complete it."""


R = TypeVar("R", bound=Outcome)


class Once:
    """The outcomes of the forms that were sent in the last KEPT_MS.

    Args:
        now_ms: The time in milliseconds since the epoch.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        # By the digest of a request; the oldest first. With the time of the request.
        self._outcomes: dict[bytes, tuple[int, asyncio.Future[Any]]] = {}

    def new_id(self) -> str:
        return secrets.token_urlsafe(16)

    async def perform(
        self,
        form_id: str,
        path: str,
        values: Mapping[str, str],
        change: Callable[[], Awaitable[R]],
    ) -> R:
        """Make a change, or return the result of the same form with the same values.

        A change that failed at a broker is kept too, because it may have been made. The page of the
        failure has a form with a new id. A refused or incomplete change may be repeated.

        Args:
            form_id: The id of the form; "" makes the change in any case.
            path: The path to which the form was sent.
            values: The values of the form.
            change: Makes the change.
        """
        if not form_id:
            return await change()
        self._forget_old_ones()
        text = repr((form_id, path, sorted(values.items())))
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        _, outcome = self._outcomes.get(key, (0, None))
        if outcome is None:
            outcome = asyncio.ensure_future(change())
            self._outcomes[key] = self._now_ms(), outcome
        try:
            # The browser may close the connection of the first request.
            result: R = await asyncio.shield(outcome)
        except MqError:
            raise
        except Exception:
            self._outcomes.pop(key, None)
            raise
        if result.incomplete:
            self._outcomes.pop(key, None)
        return result

    def _forget_old_ones(self) -> None:
        oldest_ms = self._now_ms() - KEPT_MS
        ended = [key for key, (_, outcome) in self._outcomes.items() if outcome.done()]
        for number, key in enumerate(ended):
            if self._outcomes[key][0] < oldest_ms or number <= len(ended) - MAX_KEPT:
                del self._outcomes[key]
