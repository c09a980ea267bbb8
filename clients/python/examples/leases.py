"""Receive messages on lease and settle them in any order, as request handlers and task runners."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

from aerobee_client import ConsumeFromWhere, LeasedMessage, Message, Producer, SimpleConsumer

COUNT = 10

with Producer() as producer:
    for number in range(COUNT):
        producer.send(Message("example-tasks", b"task %d" % number))

with (
    SimpleConsumer("example-runners", consume_from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer,
    ThreadPoolExecutor(4) as threads,
):
    consumer.subscribe("example-tasks")

    def work(task: LeasedMessage) -> None:
        with consumer.renewing(task):  # for as long as this takes, three hours at most
            time.sleep(0.1)
            if task.body == b"task 7":
                consumer.dead_letter(task, ValueError("seven again"))
            else:
                consumer.ack(task)

    done = 0
    while done < COUNT:  # a task whose process dies is received again after a minute
        tasks = consumer.receive(4, timedelta(minutes=1), wait=timedelta(seconds=20))
        done += sum(1 for _ in threads.map(work, tasks))
        print(f"{done} done")
