"""Send from a pool of forked processes. Each process makes its client after the fork."""

from __future__ import annotations

import multiprocessing

from aerobee_client import Message, Producer

producer: Producer | None = None


def make_producer() -> None:
    """Create the producer of a worker process after the fork, like gunicorn's post_fork."""
    global producer  # noqa: PLW0603
    producer = Producer()
    producer.start()


def send(number: int) -> int:
    assert producer is not None
    return producer.send(Message("forked-flights", b"flight %d" % number)).queue_offset


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2, make_producer) as pool:
        print("stored at queue offsets", pool.map(send, range(10)))
