"""The steps of a message: which step of which process a sampled stack belongs to.

The deepest frame that a step names decides, so the time of a library belongs to its caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

LIBRARIES = "threads of gRPC itself"
OTHER = "other"

_SERVER = (
    ("wait for events (kernel)", ("EpollSelector.select (selectors.py",)),
    ("call other services (HTTP/2)", ("aerobee_chassis/rpc/http2/channel.py",
                                      "aerobee_http2/channel.py", "aerobee_http2/connection.py",
                                      "aerobee_http2/calls.py")),
    ("serve HTTP/2: read, write (kernel)", ("aerobee_http2/", "asyncio/selector_events.py")),
    ("begin and end calls", ("aerobee_chassis/rpc/", "aerobee_cluster/access/")),
)  # fmt: skip
_LOOP = ("event loop: tasks, callbacks", ("asyncio/",))
_MESSAGES = ("aerobee_wire/", "aerobee_broker/rpc/convert.py")
# process → (step, parts of the frames "function (module.py:line)" that belong to it)
_STEPS: Mapping[str, Sequence[tuple[str, Sequence[str]]]] = {
    "broker": (
        *_SERVER,
        ("hand over to the flusher thread", ("WorkerThread.__call__",)),
        (
            "write and sync files",
            ("aerobee_broker/commit/worker_thread.py", "aerobee_broker/store/flush.py"),
        ),
        ("group commit: release waiting calls", ("aerobee_broker/commit/",)),
        (
            "check and prepare a send",
            ("aerobee_broker/delivery/send/", "aerobee_broker/registry/"),
        ),
        ("consume queues, index, checkpoint", ("aerobee_broker/store/derived/",)),
        (
            "encode records, CRC, append",
            ("aerobee_broker/store/append.py", "aerobee_broker/store/batch_encoder.py"),
        ),
        ("read and check stored records", ("aerobee_broker/store/reading/",)),
        ("lease, acknowledge, journal", ("aerobee_broker/delivery/pop/",)),
        ("pull: offsets, long polls", ("aerobee_broker/delivery/pull/",)),
        ("counters, latencies", ("aerobee_broker/delivery/statistics/", "metrics")),
        ("translate requests and responses", ("aerobee_broker/rpc/",)),
        _LOOP,
    ),
    "proxy": (
        *_SERVER,
        ("batches to brokers", ("aerobee_proxy/cluster/batches.py", "aerobee_cluster/batcher.py")),
        ("leases: receive, acknowledge", ("aerobee_proxy/cluster/leasing/",)),
        ("route, choose a queue", ("aerobee_proxy/cluster/",)),
        ("check requests", ("aerobee_proxy/v2/validation.py", "aerobee_proxy/v2/resources.py")),
        ("translate messages", ("aerobee_proxy/v2/translate.py",)),
        ("receipt handles", ("aerobee_wire/handles/",)),
        ("decode and encode records", ("aerobee_wire/",)),
        ("handlers: requests, responses", ("aerobee_proxy/",)),
        _LOOP,
    ),
    "client": (
        ("HTTP/2: read, write (kernel)", ("aerobee_http2/", "asyncio/selector_events.py",
                                          "client/cluster/transport.py")),
        ("wait for events", ("EpollSelector.select (selectors.py",)),
        ("decode records", ("aerobee_wire/record.py", "message/received_message.py")),
        ("create a message, its id and properties", ("aerobee_client/message/", "message_id.py")),
        ("receipt handles", ("aerobee_wire/handles/", "aerobee_client/leasing/leased_message.py")),
        ("encode requests, read results", ("send_request.py", "encoded_send.py", "columns.py")),
        ("check arguments", ("aerobee_client/runtime/kinds.py",)),
        ("collect sends to batches, budget", ("accumulator.py", "single_sends.py", "budget.py")),
        ("send: route, attempts, outcome", ("aerobee_client/sending/", "aerobee_client/producer.py",
                                            "aerobee_client/cluster/")),
        ("receive, acknowledge", ("aerobee_client/leasing/", "aerobee_client/simple_consumer.py")),
        ("pull, process queues, listener", ("aerobee_client/consuming/", "push_consumer.py")),
        ("gRPC calls of the load (cygrpc)", ("Client.run", "Client._call", "Client.stream",
                                             "Client.unary")),
        ("messages of the load", ("load.py", "producers.py", "leases.py", "profiles/client.py",
                                  "measure.py")),
        _LOOP,
    ),
}  # fmt: skip
# Code in which a thread waits: it is sampled here when it could run again, and has no processor.
_WAITS = (
    "WorkerThread._run", "RealFile.sync", "RealFile.pwrite", "Condition.wait",
    "EpollSelector.select", "Thread.run (threading.py", "_worker (concurrent/",
    "Client.run (load.py",
)  # fmt: skip
# Code that wakes another thread: the kernel often takes the processor for that thread.
_WAKES = (
    "_SelectorSocketTransport.write",
    "WorkerThread.__call__",
    "ServiceLoop.deliver (aerobee_chassis/rpc/http2/loop.py",
    "_call_soon_threadsafe",
)


def step_of(process: str, stack: Sequence[str]) -> str:
    """Return the step of a stack, which goes from the root to the leaf."""
    for frame in reversed(stack):
        for step, parts in _STEPS[process]:
            if any(part in frame for part in parts):
                return step
    return OTHER


def waits(stack: Sequence[str]) -> bool:
    """Return whether the thread waited in this code before it could run again."""
    return bool(stack) and any(part in stack[-1] for part in _WAITS)


def wakes(stack: Sequence[str]) -> bool:
    """Return whether the thread woke another one in this code."""
    return bool(stack) and any(part in stack[-1] for part in _WAKES)
