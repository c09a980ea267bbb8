"""Routes of topics, as name servers answer them."""

from __future__ import annotations

from aerobee.namesrv.v1.namesrv_pb2 import BrokerData, QueueData, TopicRoute


def queue_data(
    broker: str, read: int = 2, write: int = 2, permission: int = 6, kind: str = ""
) -> QueueData:
    """`kind`: the message type of the topic; empty where it declares none."""
    return QueueData(
        broker_name=broker,
        read_queue_count=read,
        write_queue_count=write,
        permission=permission,
        attributes={"message.type": kind} if kind else {},
    )


def topic_route(*queues: QueueData, masters: bool = True) -> TopicRoute:
    """Each broker has a slave, and a master if `masters`."""
    brokers = [
        BrokerData(broker_name=data.broker_name, addresses={0 if masters else 1: "h:1", 2: "h:2"})
        for data in queues
    ]
    return TopicRoute(queues=queues, brokers=brokers)
