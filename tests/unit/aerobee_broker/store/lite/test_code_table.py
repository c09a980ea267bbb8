"""The table from codes to numbers: like a dict, in few bytes, also through its bytes."""

from __future__ import annotations

import random

import pytest

from aerobee_broker.store.lite.code_table import CODE_BYTES, CodeTable


def contents(table: CodeTable) -> dict[int, tuple[int, ...]]:
    slots = {code: table.slot(code) for code in table}
    return {code: tuple(column[at] for column in table.columns) for code, at in slots.items()}


@pytest.mark.parametrize("seed", range(20))
def test_is_a_dict(seed: int) -> None:
    """Also where many codes want the same slots, and where entries are removed between them."""
    rng = random.Random(seed)
    table, model = CodeTable(2), dict[int, tuple[int, int]]()
    spread = rng.choice((8, 1_000, 1 << 50))
    for _ in range(3_000):
        code = rng.randrange(1, spread) * rng.choice((1, -1, 64))
        if rng.random() < 0.4:
            assert table.remove(code) == (model.pop(code, None) is not None)
        else:
            numbers = rng.randrange(-5, 1 << 40), rng.randrange(100)
            table.put(code, *numbers)
            model[code] = numbers
    assert contents(table) == model
    assert len(table) == len(model)
    assert all(table.slot(code) == -1 for code in range(1, 200) if code not in model)
    limit = 1 << 39
    below = {code for code, (first, _) in model.items() if first < limit}
    assert set(table.codes_where_below(0, limit)) == below


def test_comes_back_from_its_bytes() -> None:
    table, again = CodeTable(2), CodeTable(2)
    for code in range(-500, 500):
        if code:
            table.put(code, code * 3, -code)
    again.load(table.to_bytes())
    assert contents(again) == contents(table)
    again.put(1_000, 1, 2)
    assert len(again) == 1_000


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [bytes(64 * CODE_BYTES)],
        [bytes(64 * CODE_BYTES)] * 2 + [bytes(128 * CODE_BYTES)],
        [bytes(65 * CODE_BYTES)] * 3,
        [bytes(32 * CODE_BYTES)] * 3,
        [b"\1" * 64 * CODE_BYTES] * 3,
    ],
    ids=["nothing", "a column missing", "a longer column", "no power of two", "too few", "full"],
)
def test_refuses_bytes_that_are_no_table(parts: list[bytes]) -> None:
    table = CodeTable(2)
    table.put(7, 1, 2)
    with pytest.raises((ValueError, IndexError)):
        table.load(parts)
    assert contents(table) == {7: (1, 2)}


def test_takes_few_bytes_an_entry() -> None:
    rng = random.Random(1)
    table = CodeTable(6)
    for _ in range(100_000):
        table.put(rng.randrange(1, 1 << 62), 1, 2, 3, 4, 5, 6)
    assert sum(map(len, table.to_bytes())) < 80 * 100_000, "the arrays in memory"
