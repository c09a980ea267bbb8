"""A stored message, to be stored once more: in another place, with other properties."""

from __future__ import annotations

from aerobee_broker.store.messages import NewMessage
from aerobee_wire import properties as props
from aerobee_wire.record import Record


def again(record: Record, topic: str, queue_id: int, properties: dict[str, str]) -> NewMessage:
    """It says nothing of the half message that the record may come from."""
    return NewMessage(
        topic=topic,
        queue_id=queue_id,
        body=record.body,
        properties=props.encode(properties),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp_ms=record.born_timestamp_ms,
        born_host=record.born_host_packed,
        reconsume_times=record.reconsume_times,
    )
