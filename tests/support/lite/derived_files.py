"""What a broker derives of lite topics, lost."""

from __future__ import annotations

import random

from support.disk.simulated_disk import SimulatedDisk


def lose_derived_files(disk: SimulatedDisk, rng: random.Random) -> None:
    """Some of what only spares a start its time: gone, or with a bit that has flipped."""
    lite = [
        path
        for path, data in sorted(disk.files().items())
        if data and ("lite" in path.parts or path.name == "liteOffsets")
    ]
    for path in rng.sample(lite, rng.randrange(len(lite) + 1)):
        if rng.random() < 0.5:
            disk.remove(path)
        else:
            disk.flip(path, rng.randrange(8 * len(disk.files()[path])))
