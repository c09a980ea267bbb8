"""The tables of `make profile`: stacks from a flame graph, and the distribution of their time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench.profiles import sampler, steps
from bench.profiles.rows import ROWS
from bench.profiles.run import distributed
from bench.profiles.threads import Usage

WAIT = ("run (app.py:1)", "EpollSelector.select (selectors.py:468)")
HAND_OVER = ("run (app.py:1)", "WorkerThread.__call__ (aerobee_broker/commit/worker_thread.py:41)")
APPEND = ("run (app.py:1)", "Appender._append (aerobee_broker/store/append.py:86)")
SEND = ("run (app.py:1)", "BatchSender.send (aerobee_broker/delivery/send/batch.py:87)")


def frame(y: int, start: int, width: int, name: str) -> str:
    title = f"<title>{name} ({width} samples, 1.00%)</title>"
    return f'<g>{title}<rect x="0%" y="{y}" fg:x="{start}" fg:w="{width}"/></g>'


def flame_graph(path: Path, *frames: str) -> Path:
    names = 'xmlns="http://www.w3.org/2000/svg" xmlns:fg="http://github.com/jonhoo/inferno"'
    path.write_text(f'<svg {names}><svg id="frames">{"".join(frames)}</svg></svg>')
    return path


def test_stacks_have_the_samples_that_their_children_do_not_have(tmp_path: Path) -> None:
    picture = flame_graph(
        tmp_path / "broker.svg",
        frame(36, 0, 10, "all"),
        frame(52, 0, 4, "thread (7): MainThread"),
        frame(52, 4, 6, "thread (8): flusher"),
        frame(68, 0, 4, "a (a.py:1)"),
        frame(84, 0, 1, "b (a.py:2)"),
        frame(84, 1, 2, "c (a.py:3)"),
        frame(68, 4, 6, "b (a.py:2)"),
    )
    assert sampler.stacks(picture) == {
        7: {("a (a.py:1)",): 1, ("a (a.py:1)", "b (a.py:2)"): 1, ("a (a.py:1)", "c (a.py:3)"): 2},
        8: {("b (a.py:2)",): 6},
    }


def test_a_flame_graph_without_samples_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(sampler.SamplerError, match="no samples"):
        sampler.stacks(flame_graph(tmp_path / "broker.svg", frame(36, 0, 1, "all")))


def test_each_thread_counts_with_its_own_processor_time() -> None:
    found: dict[int, Counter[sampler.Stack]] = {
        1: Counter({APPEND: 3, SEND: 1}),
        2: Counter({SEND: 10}),
    }
    never_late = Usage(cpu_s=1, delay_s=0, waits=1, preemptions=0)
    used = dict.fromkeys((1, 2, 3), never_late)
    profile = distributed("broker", {1: 8.0, 2: 1.0, 3: 0.5}, used, found)
    assert profile.us == 9.5 and profile.samples == 14
    assert profile.steps == {
        "encode records, CRC, append": 6.0,
        "check and prepare a send": 3.0,
        steps.LIBRARIES: 0.5,
    }


@pytest.mark.parametrize(
    ("late", "waits", "preemptions"), [(WAIT, 10, 0), (HAND_OVER, 0, 10)], ids=["wait", "wake"]
)
def test_time_without_a_processor_is_taken_off_the_code_that_waited_or_woke(
    late: tuple[str, ...], waits: int, preemptions: int
) -> None:
    """Six of ten samples found the thread ready to run without a processor."""
    used = Usage(cpu_s=4, delay_s=6, waits=waits, preemptions=preemptions)
    stacks: Counter[sampler.Stack] = Counter({late: 7, APPEND: 3})
    profile = distributed("broker", {1: 8.0}, {1: used}, {1: stacks})
    assert profile.steps == pytest.approx(
        {"encode records, CRC, append": 6.0, steps.step_of("broker", late): 2.0}
    )


def test_the_deepest_frame_with_a_step_decides() -> None:
    assert steps.step_of("broker", (*SEND, "zip (somewhere.py:1)")) == "check and prepare a send"
    assert steps.step_of("client", ("f (elsewhere.py:1)",)) == steps.OTHER
    assert steps.step_of("broker", ()) == steps.OTHER


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("Permission Denied: Try running again", "ptrace is not permitted"),
        ("Error: Failed to copy\n\nCaused by:\n  Operation not permitted (os error 1)", "ptrace"),
        ("py-spy> Sampling\nError: No such process\n", "py-spy failed: Error: No such process"),
        ("", "it printed nothing"),
    ],
)
def test_the_reason_of_a_failure_is_said(said: str, reason: str) -> None:
    assert reason in sampler.explained(said)


def test_each_process_of_each_row_has_steps() -> None:
    for row in ROWS.values():
        processes = ("broker", "proxy", "client") if row.by_proxy else ("broker", "client")
        assert {steps.step_of(process, ()) for process in processes} == {steps.OTHER}
