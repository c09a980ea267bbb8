"""What a broker derives from its log, lost."""

from __future__ import annotations

import random

from support.disk.simulated_disk import SimulatedDisk


def lose_derived_files(disk: SimulatedDisk, rng: random.Random, *, checkpoint: bool = True) -> None:
    """Some of what only spares a start its time: of lite topics gone, or with a bit that has
    flipped; of all queues, now and then, gone or cut short. `checkpoint`: that too, without which a
    start takes a hole that a power cut has left in the end of the log for damage."""
    files = {path: data for path, data in sorted(disk.files().items()) if data}
    lite = [path for path in files if "lite" in path.parts or path.name == "liteOffsets"]
    for path in rng.sample(lite, rng.randrange(len(lite) + 1)):
        if rng.random() < 0.5:
            disk.remove(path)
        else:
            disk.flip(path, rng.randrange(8 * len(files[path])))
    if rng.random() < 0.5:
        return
    queues = [
        path
        for path in files
        if "consumequeue" in path.parts or (path.name == "checkpoint" and checkpoint)
    ]
    for path in rng.sample(queues, rng.randrange(len(queues) + 1)):
        if rng.random() < 0.5:
            disk.remove(path)
        else:
            disk.put(path, files[path][: rng.randrange(len(files[path]))])
