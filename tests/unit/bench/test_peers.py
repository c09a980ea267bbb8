"""The comparison with other products shows no figure for a row that lost a message."""

from __future__ import annotations

from typing import Any

import pytest

from bench.peers import table
from bench.peers.rows import ALL
from bench.peers.tally import SIZE, Tally, WrongCount, body, check_stored, number_of


def sent(messages: int, seconds: float, **others: Any) -> dict[str, Any]:
    times = dict.fromkeys(
        ("servers_user_s", "servers_system_s", "client_user_s", "client_system_s"), 0.001
    )
    return {"messages": messages, "seconds": seconds, **times, **others}


def test_a_rate_is_the_median_with_its_range_and_the_cost_of_a_message() -> None:
    rounds = [sent(1_000, 1.0), sent(3_000, 1.0), sent(2_000, 1.0)]
    assert table.cell("send_64", rounds) == "2,000 (1,000–3,000)/s; 1 + 1"


@pytest.mark.parametrize(
    ("row", "found", "shown"),
    [
        ("ready", {"seconds": 1.25}, "1.25"),
        ("idle", {"cpu_percent": 0.5, "wakeups": 12.0}, "0.5 · 12"),
        ("memory", {"fresh_mb": 99.6, "loaded_mb": 150.4}, "100 · 150"),
        ("syncs", {"syncs": 100, "sent": 80}, "1.25"),
        ("paced", sent(1_000, 1.0, p50_ms=1.5, p99_ms=20.0), "1.5 · 20; 2 + 2"),
        ("letters", sent(1_000, 0.5), "0.5; 2 + 2"),
    ],
)
def test_other_rows_have_units_of_their_own(row: str, found: dict[str, Any], shown: str) -> None:
    assert table.cell(row, [found]) == shown


def test_a_row_that_was_refused_once_has_no_figure() -> None:
    rounds = [sent(1_000, 1.0), {"refused": "3 of 10 messages did not arrive\nmore"}]
    assert table.cell("push", rounds) == "refused: 3 of 10 messages did not arrive"


def test_a_row_that_a_product_cannot_do_is_a_dash() -> None:
    assert table.cell("push", [{"absent": "no push consumer"}]) == table.NOTHING
    assert table.cell("push", []) == table.NOTHING


def test_sends_without_a_sync_each_are_refused() -> None:
    found = sent(100, 1.0, syncs=99, sent=100)
    table.check_synced(found)
    assert table.cell("syncs", [found]).startswith("refused: 99 syncs for 100 sends")


def report(rounds: int, **figures: list[dict[str, Any]]) -> dict[str, Any]:
    machine = dict.fromkeys(("processor", "cpus", "kernel", "python", "file_system", "date"), "x")
    how = {"send": "one by one", "drain": "many at once"}
    client = {"title": "Own, its client", "how": how, "figures": figures}
    return {
        "machine": machine | {"fdatasync_us": 75.0, "sleep_loop_percent": 0.2},
        "rounds": rounds,
        "rows": {"send_1": "send", "send_64": "more", "drain": "receive"},
        "products": {"own": {"title": "Own", "durability": "sync", "figures": {}}},
        "clients": {"own/own": client},
    }


def test_a_page_names_the_rows_that_were_not_measured_and_shows_no_way_of_theirs() -> None:
    figures = {"send_1": [sent(10, 1.0)], "drain": [{"absent": "nothing"}]}
    page = table.block(report(1, **figures))
    assert "| Own, its client | send | one by one |" in page
    assert "many at once" not in page
    left_out = page.partition("were not measured: ")[2]
    assert "`send_64`" in left_out and "`drain`" in left_out and "`send_1`" not in left_out
    shown = {row: [{"refused": "lost"}] for row in ALL}  # and why there is no figure
    assert "not measured" not in table.block(report(1, **shown))


@pytest.mark.parametrize(
    ("rounds", "text"), [(1, "One round, x."), (3, "Medians of 3 rounds (minimum–maximum), x.")]
)
def test_a_page_says_how_many_rounds_were_measured(rounds: int, text: str) -> None:
    assert text in table.block(report(rounds, send_1=[sent(10, 1.0)] * rounds))


def test_a_tally_knows_missing_repeated_and_foreign_messages() -> None:
    tally = Tally(3)
    for number in (0, 2, 2):
        assert tally.see(body(number)) == number
    assert (tally.distinct, tally.repeated, tally.times(2)) == (2, 1, 2)
    with pytest.raises(WrongCount, match="1 of 3 messages did not arrive, the first is 1"):
        tally.check()
    for foreign in (body(3), body(1)[:-1]):
        with pytest.raises(WrongCount, match="was not sent"):
            tally.see(foreign)
    assert len(body(7)) == SIZE
    assert number_of(body(7)) == 7


def test_a_server_must_store_each_acknowledged_message() -> None:
    check_stored(10, 11)
    with pytest.raises(WrongCount, match="10 messages were acknowledged, but 9 are stored"):
        check_stored(10, 9)
    with pytest.raises(WrongCount, match="no send was acknowledged"):
        check_stored(0, 0)
