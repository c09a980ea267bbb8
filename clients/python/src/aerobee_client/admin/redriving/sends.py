"""Convert dead letters to messages, and send them again.

Most messages are sent in runs, each of which is one request. The other messages are sent alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from aerobee_client.admin.redriving import rules
from aerobee_client.admin.redriving.outcome import Outcome, Status
from aerobee_client.admin.redriving.rules import Target
from aerobee_client.message import Message, ReceivedMessage
from aerobee_client.sending import send_request
from aerobee_wire import properties as names
from aerobee_wire.compression import compression_bits
from aerobee_wire.status import Code, MqError
from aerobee_wire.topics import check_topic

if TYPE_CHECKING:
    from aerobee_client.producer import AsyncProducer
    from aerobee_client.send_result import SendResult


# The minimum number of dead letters of a run. Fewer are sent as single sends, which share requests.
# Otherwise a window of many topics would need a request for each dead letter.
MIN_RUN = 64
# With these errors, the broker has not stored the message. After any other error, it may have.
_NOT_STORED = frozenset({Code.MESSAGE_ILLEGAL, Code.INVALID_PARAMETER, Code.TOPIC_NOT_EXIST})
# With these errors, no message of the run is stored, and one dead letter may be the cause.
_REFUSED = frozenset({Code.MESSAGE_ILLEGAL, Code.INVALID_PARAMETER, Code.NO_PERMISSION})

_check_topic = lru_cache(maxsize=1024)(check_topic)
# Creates an Outcome from all its fields, in half the time of a call with names.
_outcome = partial(tuple.__new__, Outcome)


class OpenedLetter:
    """A dead letter with its ids and its parsed properties.

    `handled` are the properties that `rules` use; `others` is the encoded text of all others.
    """

    __slots__ = ("handled", "letter", "message_id", "offset_message_id", "others")

    def __init__(self, letter: ReceivedMessage) -> None:
        self.letter = letter
        self.handled, self.others = names.split(letter.stored_properties, rules.LOOKED_AT)
        self.offset_message_id = letter.offset_message_id
        self.message_id = rules.message_id_of(self.handled, self.offset_message_id)

    @property
    def tag(self) -> str:
        return self.handled.get(names.TAGS, "")


class Redriven(Message):
    """The message that is sent for a dead letter of `consumer_group`, made by `rules`.

    A compressed body stays compressed. Unless the target is the retry topic, the message goes to
    the queue of its message group, lite topic or priority. Raises MqError if it cannot be sent.
    """

    __slots__ = ("_encoded", "sys_flag")

    def __init__(
        self, opened: OpenedLetter, consumer_group: str, target: Target, now_ms: int
    ) -> None:
        letter, handled = opened.letter, opened.handled
        # Skip the constructor of Message, whose checks a stored message has already passed.
        self.topic = rules.topic_for(target, consumer_group, handled)
        _check_topic(self.topic)
        self.body = letter.stored_body
        if not self.body:
            raise MqError(Code.MESSAGE_ILLEGAL, "the body is empty")
        self.size = len(self.body)
        self.flag = letter.flag
        self.sys_flag = compression_bits(letter.sys_flag)
        sent = rules.properties_for(
            target, handled, offset_message_id=opened.offset_message_id, now_ms=now_ms
        )
        self._encoded = opened.others.encode() + names.encode(sent)
        self.tag, self.keys, self.encoded_settings = "", (), ""  # these are in `_encoded`
        self.system_properties = {}
        self.message_group = self.lite_topic = ""
        self.priority = None
        if not target.is_retry:
            self.message_group = handled.get(names.SHARDING_KEY, "")
            self.lite_topic = handled.get(names.LITE_TOPIC, "")
            if names.PRIORITY in handled:
                self.priority = names.whole_number(handled[names.PRIORITY])
        self.delay_level, self.delay, self.deliver_at = 0, None, None
        self.wait_store_ok = True

    @property
    def properties(self) -> Mapping[str, str]:  # decoded on demand
        return names.decode(self._encoded)

    @properties.setter
    def properties(self, given: Mapping[str, str]) -> None:
        self._encoded = names.encode(given)

    def encoded_properties(self, message_id: str, added: str = "") -> bytes:
        """Return the properties string. `message_id` is ignored; the string contains an id."""
        return self._encoded + added.encode() if added else self._encoded


@dataclass(slots=True)
class Send:
    message_id: str
    offset_message_id: str
    tag: str
    message: Redriven
    perhaps_twice: bool
    result: Outcome | None = None  # set once it has its answer

    def outcome(self, status: Status, error: str = "", *, unknown: bool = False) -> Outcome:
        return Outcome(
            self.message_id,
            self.offset_message_id,
            self.tag,
            self.message.topic,
            status,
            error,
            perhaps_twice=self.perhaps_twice and status is not Status.FAILED,
            outcome_unknown=unknown,
        )

    def end(self, status: Status) -> None:
        fields = (self.message_id, self.offset_message_id, self.tag, self.message.topic)
        self.result = _outcome((*fields, status, "", self.perhaps_twice, False))

    def fail(self, error: MqError) -> None:
        unknown = error.code not in _NOT_STORED
        self.result = self.outcome(Status.FAILED, str(error), unknown=unknown)

    def answered(self, future: asyncio.Future[SendResult]) -> None:
        """Record the answer of a single send. Raises errors that are not an MqError."""
        error = future.exception()
        if error is None:
            self.end(Status.SENT)
        elif isinstance(error, MqError):
            self.fail(error)
        else:
            raise error


def split(sends: Sequence[Send]) -> tuple[list[list[Send]], list[Send]]:
    """Split sends into runs and single sends.

    Dead letters with a message group, lite topic or priority are sent alone. So are dead letters of
    topics that have few of them.
    """
    free = [send for send in sends if not send.message.order_key and send.message.priority is None]
    messages = [send.message for send in free]
    runs = [
        [free[index] for index in indexes]
        for indexes, _ in send_request.runs(messages, range(len(messages)))
        if len(indexes) >= MIN_RUN
    ]
    if sum(map(len, runs)) == len(sends):
        return runs, []
    in_runs = {send.message_id for run in runs for send in run}
    return runs, [send for send in sends if send.message_id not in in_runs]


async def check_all(producer: AsyncProducer, sends: Iterable[Send]) -> None:
    """Determine the outcome of each send in a dry run.

    The outcome is WOULD_SEND, or the failure that the send would have.
    """
    for send in sends:
        try:
            await producer.check(send.message)
        except MqError as error:
            send.fail(error)
        else:
            send.end(Status.WOULD_SEND)


async def send_run(producer: AsyncProducer, run: Sequence[Send]) -> None:
    """Send a run in one request.

    If the request is refused, each message is sent alone, so that only the refused messages fail.
    """
    try:
        await producer.send_batch([send.message for send in run])
    except MqError as error:
        if error.code not in _REFUSED:
            for send in run:
                send.fail(error)
            return
    else:
        status = Status.SENT  # an enum is slow to ask for its members
        for send in run:
            send.end(status)
        return
    futures = [producer.send_async(send.message) for send in run]
    await wait_for(futures)
    for send, future in zip(run, futures, strict=True):
        send.answered(future)


async def wait_for(futures: Iterable[asyncio.Future[SendResult] | asyncio.Task[None]]) -> None:
    """Wait until all futures are done. A cancellation does not cancel them.

    One request completes many futures. Waiting for one future after the other therefore costs one
    wait per request. `asyncio.wait` for all futures would schedule a callback for each.
    """
    for future in futures:
        if not future.done():
            await asyncio.wait((future,))
