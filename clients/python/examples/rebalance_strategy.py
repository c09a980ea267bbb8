"""Choose how the members of a group divide the queues: by a strategy or RocketMQ's name."""

import os
import time

from aerobee_client import AdminClient, PushConsumer, rebalance

NAMESRV = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC = "parcels"


def queues_of(member: PushConsumer) -> list[int]:
    return sorted(queue.queue_id for queue in member.queues if queue.topic == TOPIC)


with AdminClient(NAMESRV) as admin:
    admin.create_topic(TOPIC, queues=4)
by_circle = rebalance.average_by_circle  # or strategy="AVG_BY_CIRCLE"
members = [
    PushConsumer("sorting", print, namesrv=NAMESRV, strategy=by_circle, machine_room="east")
    for _ in range(2)
]
for member in members:
    member.subscribe(TOPIC)
with members[0], members[1]:
    while any(len(queues_of(member)) != 2 for member in members):
        time.sleep(0.1)
    print(sorted(queues_of(member) for member in members))  # [[0, 2], [1, 3]]
