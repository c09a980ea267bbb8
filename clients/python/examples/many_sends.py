"""Many single sends: they travel together by themselves, and wait where too many are under way."""

from __future__ import annotations

from aerobee_client import Code, Message, MqError, Producer, SendResult

failures: list[BaseException] = []


def report(result: SendResult | None, error: BaseException | None) -> None:
    if error is not None:
        failures.append(error)


with Producer(max_pending_messages=2_000) as producer:
    # Each send has a result of its own. Those that come while a request is in flight leave together
    # in the next one. Beyond 2,000 under way, or 32 MiB, the call waits for room.
    for number in range(10_000):
        producer.send_async(Message("example-measurements", b"%d" % number), report)

    # A send that may not wait fails at once, and nothing of that message is sent.
    refused = 0
    for number in range(10_000):
        future = producer.send_async(Message("example-measurements", b"%d" % number), block=False)
        error = future.exception() if future.done() else None
        if isinstance(error, MqError) and error.code is Code.FLOW_CONTROL:
            refused += 1

# The end of the block has waited for all of them.
assert not failures, failures[0]
print(f"10,000 are stored; of 10,000 more {refused} found no room")
print(producer.statistics())
