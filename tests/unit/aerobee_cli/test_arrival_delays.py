"""The consumer of the demo, without a broker."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee_cli.demo.job import ArrivalDelays, NeverArrived
from aerobee_wire.topics import retry_topic

FLIGHT = {
    "year": 2013,
    "month": 1,
    "day": 2,
    "carrier": "UA",
    "flight": 1545,
    "origin": "EWR",
    "dest": "IAH",
    "arr_time": 830,
    "arr_delay": 11,
}


def delivery(message_id: str, *, reconsume_times: int = 0, **changes: Any) -> Any:
    body = json.dumps({**FLIGHT, **changes}).encode()
    topic = retry_topic("delays") if reconsume_times else "flights"
    return SimpleNamespace(
        message_id=message_id,
        offset_message_id=f"{message_id}-{reconsume_times}",
        reconsume_times=reconsume_times,
        body=body,
        stored_topic=topic,
    )


async def test_the_mean_is_by_carrier() -> None:
    delays = ArrivalDelays()
    await delays.on_flight(delivery("a"))
    await delays.on_flight(delivery("b", arr_delay=20))
    await delays.on_flight(delivery("c", carrier="AA", arr_delay=-4))
    assert delays.mean_by_carrier() == {"AA": -4.0, "UA": 15.5}
    assert delays.count_by_carrier() == {"AA": 1, "UA": 2}


async def test_a_flight_that_comes_twice_counts_once() -> None:
    delays = ArrivalDelays()
    for _ in range(2):
        await delays.on_flight(delivery("a"))
    await delays.on_flight(delivery("b", arr_delay=20))
    assert delays.mean_by_carrier() == {"UA": 15.5}
    assert delays.arrived == {"a", "b"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"arr_time": None, "arr_delay": None},
            "no arrival time: UA1545 of 2013-01-02, EWR to IAH",
        ),
        ({"arr_delay": None}, "no arrival delay: UA1545 of 2013-01-02, EWR to IAH"),
    ],
)
async def test_a_flight_that_never_arrived_is_an_error_that_names_it(
    changes: dict[str, Any], reason: str
) -> None:
    delays = ArrivalDelays()
    with pytest.raises(NeverArrived) as raised:
        await delays.on_flight(delivery("a", **changes))
    assert str(raised.value) == reason
    assert not delays.arrived


async def test_each_further_delivery_is_a_retry_however_often_it_comes() -> None:
    delays = ArrivalDelays()
    for times in (0, 1, 2, 2):
        with pytest.raises(NeverArrived):
            await delays.on_flight(delivery("a", reconsume_times=times, arr_time=None))
    for taken_back in (0, 2):
        by_the_client = delivery("a", reconsume_times=taken_back, arr_time=None)
        by_the_client.reconsume_times = 3  # the broker could not be reached to take it back
        with pytest.raises(NeverArrived):
            await delays.on_flight(by_the_client)
    assert delays.retries == {("a", 1), ("a", 2)}
