"""Components: the order of their steps, and what a failure leaves running."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

import pytest

from aerobee_chassis.errors import StartError
from aerobee_chassis.lifecycle import App, Component, Lifecycle, Step


class Recorded(Component):
    """Writes its steps to `steps`; those in `failing` raise StartError."""

    def __init__(self, name: str, steps: list[str], failing: str = "") -> None:
        self._name = name
        self._steps = steps
        self._failing = failing

    def restore(self) -> None:
        self._step("restore")

    async def start(self) -> None:
        self._step("start")

    async def stop(self) -> None:
        self._step("stop")

    def _step(self, step: str) -> None:
        self._steps.append(f"{step} {self._name}")
        if step == self._failing:
            raise StartError(step)


async def test_all_are_restored_then_started_and_stopped_in_reverse() -> None:
    steps: list[str] = []
    lifecycle = Lifecycle()
    await lifecycle.start(Recorded("a", steps), Recorded("b", steps))
    await lifecycle.start(Recorded("c", steps))
    await lifecycle.stop()
    assert steps == [
        *("restore a", "restore b", "start a", "start b"),
        *("restore c", "start c"),
        *("stop c", "stop b", "stop a"),
    ]


async def test_the_loop_goes_on_between_slices_of_a_restore() -> None:
    class Large(Component):
        def restore_slices(self) -> Iterator[None]:
            for number in range(3):
                seen.append(number)
                asyncio.get_running_loop().call_soon(seen.append, "loop")
                yield

    seen: list[object] = []
    await Lifecycle().start(Large())
    assert seen == [0, "loop", 1, "loop", 2, "loop"]


async def test_failed_start_stops_what_was_started() -> None:
    steps: list[str] = []
    lifecycle = Lifecycle()
    components = Recorded("a", steps), Recorded("b", steps, "start"), Recorded("c", steps)
    with pytest.raises(StartError):
        await lifecycle.start(*components)
    await lifecycle.stop()
    assert steps[3:] == ["start a", "start b", "stop b", "stop a"]


async def test_failed_restore_starts_and_stops_nothing() -> None:
    steps: list[str] = []
    lifecycle = Lifecycle()
    with pytest.raises(StartError):
        await lifecycle.start(Recorded("a", steps), Recorded("b", steps, "restore"))
    await lifecycle.stop()
    assert steps == ["restore a", "restore b"]


async def test_failed_stop_does_not_keep_the_others() -> None:
    steps: list[str] = []
    lifecycle = Lifecycle()
    await lifecycle.start(Recorded("a", steps), Recorded("b", steps, "stop"))
    with pytest.raises(StartError):
        await lifecycle.stop()
    assert steps[-2:] == ["stop b", "stop a"]


class SampleApp(App):
    async def _start_components(self) -> Mapping[str, object]:
        assert not self.serving
        await self.lifecycle.start(Step(stop=self._on_stop))
        return {"address": "127.0.0.1:1"}

    def _on_stop(self) -> None:
        assert not self.serving


async def test_app_serves_between_start_and_stop() -> None:
    app = SampleApp()
    await app.start()
    assert app.serving and app.address == "127.0.0.1:1"
    await app.stop()
