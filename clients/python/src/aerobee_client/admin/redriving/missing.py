"""A dead letter that was named and is not there."""

from __future__ import annotations

from typing import NamedTuple


class Missing(NamedTuple):
    """`why`: one sentence."""

    message_id: str
    offset_message_id: str
    why: str
