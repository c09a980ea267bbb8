"""Members that join and leave while all live and nothing is in flight: real processes, no message
that is settled comes again."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from functools import partial

import pytest

from aerobee_client import (
    AdminClient,
    ConsumeFromWhere,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
)
from support.clock.polling import until_sync

COUNT, ROUNDS = 40, 4
FIRST = ConsumeFromWhere.FIRST_OFFSET


class Group:
    def __init__(self, name: str, namesrv: str) -> None:
        self.name, self.namesrv = name, namesrv
        self.got: list[bytes] = []

    def has(self, count: int) -> bool:
        return len(set(self.got)) == count

    @contextmanager
    def push(self) -> Iterator[PushConsumer]:
        def listen(message: ReceivedMessage) -> None:
            self.got.append(message.body)

        consumer = PushConsumer(
            self.name, listen, namesrv=self.namesrv, consume_from_where=FIRST, concurrency=1
        )
        consumer.subscribe(self.name)
        with consumer:
            yield consumer

    @contextmanager
    def pull(self) -> Iterator[PullConsumer]:
        consumer = PullConsumer(self.name, namesrv=self.namesrv, consume_from_where=FIRST)
        consumer.subscribe(self.name)
        closing = threading.Event()

        def poll() -> None:
            while not closing.is_set():
                for message in consumer.poll(timeout=timedelta(seconds=0.1)):
                    self.got.append(message.body)

        with consumer:
            polling = threading.Thread(target=poll)
            polling.start()
            yield consumer
            closing.set()
            polling.join()


Join = Callable[[Group], AbstractContextManager[PushConsumer | PullConsumer]]


@pytest.mark.parametrize("join", [Group.push, Group.pull], ids=["push", "pull"])
def test_members_that_join_and_leave_get_no_settled_message(namesrv: str, join: Join) -> None:
    group = Group(f"handed-over-{join.__name__}", namesrv)

    def share(member: PushConsumer | PullConsumer) -> int:
        return sum(queue.topic == group.name for queue in member.queues)

    with ExitStack() as stack:
        admin = stack.enter_context(AdminClient(namesrv))
        admin.create_topic(group.name, queues=4)
        producer = stack.enter_context(Producer(namesrv=namesrv))
        first = stack.enter_context(join(group))
        until_sync(lambda: share(first) == 4)
        for number in range(ROUNDS):
            for place in range(COUNT):
                producer.send(Message(group.name, b"%d.%d" % (number, place)))
            until_sync(partial(group.has, (number + 1) * COUNT))
            with join(group) as second:
                until_sync(lambda: share(first) == share(second) == 2)
            until_sync(lambda: share(first) == 4)
        # What comes last shows that everything before was pulled again if it was to be.
        for place in range(8):
            producer.send(Message(group.name, b"last %d" % place))
        until_sync(partial(group.has, ROUNDS * COUNT + 8))
    assert set(Counter(group.got).values()) == {1}
