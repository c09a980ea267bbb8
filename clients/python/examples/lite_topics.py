"""Lite topics: a line of messages for each session, of which each client chooses its own."""

from __future__ import annotations

from datetime import timedelta

from aerobee_client import AdminClient, LiteSimpleConsumer, Message, OffsetOption, Producer

PARENT, GROUP = "example-sessions", "example-agents"
SESSIONS = ["s-4711", "s-4712", "s-4713"]

with AdminClient() as admin:  # as: aerobee topic create, aerobee group create --lite-topic
    admin.create_topic(PARENT, message_type="LITE")
    admin.create_group(GROUP, attributes={"lite.bind.topic": PARENT, "lite.sub.model": "Exclusive"})

with Producer() as producer:
    for turn in range(3):
        for session in SESSIONS:
            producer.send(Message(PARENT, b"turn %d" % turn, lite_topic=session))


def evicted(lite_topics: object) -> None:
    print(f"another agent has taken over {lite_topics}")


with LiteSimpleConsumer(GROUP, PARENT, on_evicted=evicted) as agent:
    agent.subscribe_lite(*SESSIONS[:2])
    agent.subscribe_lite(SESSIONS[2], offset_option=OffsetOption.of_tail(1))
    done = 0
    while done < 7:  # the last turn of one session, and three of each other
        for message in agent.receive(16):
            print(message.lite_topic, message.body.decode())
            agent.ack(message)
            done += 1
    with LiteSimpleConsumer(GROUP, PARENT) as other:
        other.subscribe_lite(SESSIONS[0])
        agent.receive(1, wait=timedelta(0))  # brokers say what was lost in their answers
    print(f"left: {sorted(agent.lite_topics)}")
