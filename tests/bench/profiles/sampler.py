"""Sample the Python threads of a process with py-spy, and read the stacks of its flame graph.

py-spy reads the memory of the process from outside, which needs the permission for ptrace. It
counts a thread while the thread runs or could run. It does not pause the process: each pause would
wake every thread that waits. Threads of libraries, such as gRPC's own, have no stack here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

RATE_HZ = 200
ATTACH_S = 60.0  # that py-spy may need beyond the time that it samples, on a busy machine
FRAME_HEIGHT = 16  # of a flame graph; y grows from the root to the leaf
_SVG = "{http://www.w3.org/2000/svg}"
_FRAME = "{http://github.com/jonhoo/inferno}"

Stack = tuple[str, ...]  # from the root to the leaf, each "function (module.py:line)"
_THREAD = re.compile(r"thread \((\d+)\)")  # the root of each stack


class SamplerError(Exception):
    """No profile could be made. The text says why, and what to do."""


def find(path: Path) -> Path:
    """Return py-spy: this one, or the one on the path. Raises SamplerError."""
    if path.is_file():
        return path
    found = shutil.which("py-spy")
    if found is None:
        raise SamplerError(f"{path} does not exist: run 'make profile', which installs py-spy")
    return Path(found)


def record(
    sampler: Path, pid: int, seconds: float, output: Path, *, rate: int, native: bool
) -> None:
    """Write a flame graph of a process. Raises SamplerError."""
    output.unlink(missing_ok=True)
    command = [
        *(str(sampler), "record", "--pid", str(pid), "--duration", str(max(1, round(seconds)))),
        *("--rate", str(rate), "--function", "--threads", "--nonblocking"),
        *("--format", "flamegraph", "--output", str(output), *(["--native"] if native else [])),
    ]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            check=False, timeout=seconds + ATTACH_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SamplerError(f"py-spy did not end {ATTACH_S:g} s after it should have") from None
    if done.returncode or not output.exists():
        raise SamplerError(explained(done.stdout.decode(errors="replace")))


def explained(said: str) -> str:
    """Return why py-spy failed, and what to do."""
    lowered = said.lower()
    if "permission denied" in lowered or "not permitted" in lowered:
        return (
            "ptrace is not permitted here, which py-spy needs: run as root, set "
            "kernel.yama.ptrace_scope to 0, or give the container CAP_SYS_PTRACE"
        )
    lines = [line for line in said.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("Error")), lines[-1] if lines else "")
    return f"py-spy failed: {reason or 'it printed nothing'}"


def stacks(flame_graph: Path) -> Mapping[int, Counter[Stack]]:
    """Return the samples of each stack of each thread.

    Raises SamplerError if nothing was sampled.
    """
    frames = []
    for group in ET.parse(flame_graph).iter(f"{_SVG}g"):
        title, box = group.find(f"{_SVG}title"), group.find(f"{_SVG}rect")
        if title is not None and box is not None and title.text and f"{_FRAME}w" in box.attrib:
            name = title.text.rpartition(" (")[0]  # then "12 samples, 3.45%)"
            start, width = (int(box.attrib[f"{_FRAME}{key}"]) for key in "xw")
            frames.append((int(float(box.attrib["y"])), start, start + width, name))
    found: Counter[Stack] = Counter()
    open_frames: dict[int, tuple[int, int, Stack]] = {}
    # A parent comes before its children, which have the height below it and lie within its width.
    for y, start, end, name in sorted(frames, key=lambda frame: (frame[1], frame[0])):
        above = open_frames.get(y - FRAME_HEIGHT)
        is_child = above is not None and above[0] <= start and end <= above[1]
        parent: Stack = above[2] if above is not None and is_child else ()
        stack = parent if name == "all" else (*parent, name)
        open_frames[y] = (start, end, stack)
        found[stack] += end - start
        if parent:
            found[parent] -= end - start
    samples: dict[int, Counter[Stack]] = {}
    for stack, count in found.items():
        if stack and count > 0 and (thread := _THREAD.match(stack[0])) is not None:
            samples.setdefault(int(thread[1]), Counter())[stack[1:]] += count
    if not samples:
        raise SamplerError(f"{flame_graph} has no samples: the process did not run")
    return samples
