"""Describe a listed dead letter that does not exist."""

from __future__ import annotations

from typing import NamedTuple


class Missing(NamedTuple):
    """A dead letter that was listed and is missing. `why`: the reason, in one sentence."""

    message_id: str
    offset_message_id: str
    why: str
