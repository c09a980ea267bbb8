"""Questions to other servers that many callers share. One that leaves takes the answer from no
other; who has an older answer does not wait long for a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aerobee_chassis.clock import Clock

PATIENCE_S = 0.3  # for an answer, where an older one is there
AGAIN_MS = 1_000  # until the next question, when one failed and an older answer served

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    task: asyncio.Task[T]
    since_ms: int  # monotonic


class Questions(Generic[T]):
    """At most one under way for each name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._asked: dict[str, Question[T]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def ask(self, name: str, how: Callable[[], Coroutine[Any, Any, T]]) -> Question[T]:
        question = self._asked.get(name)
        if question is None:
            task = asyncio.create_task(how())
            question = self._asked[name] = Question(task, self._clock.monotonic_ms())
            task.add_done_callback(lambda done: self._answered(name, done))
        return question

    async def answer(self, question: Question[T], *, impatient: bool) -> T:
        """Raises what the question raised; TimeoutError when there is no answer in PATIENCE_S from
        when it was asked, for who is `impatient`."""
        if impatient:
            waited_s = (self._clock.monotonic_ms() - question.since_ms) / 1_000
            await asyncio.wait([question.task], timeout=max(0.0, PATIENCE_S - waited_s))
            if not question.task.done():
                raise TimeoutError
        return await asyncio.shield(question.task)

    def _answered(self, name: str, task: asyncio.Task[T]) -> None:
        del self._asked[name]
        if not task.cancelled():
            task.exception()  # looked at, also when every caller has left
