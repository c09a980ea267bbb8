"""What a test says of an error: its code, and what it is about; never its words."""

from __future__ import annotations

from typing import TypeVar

import pytest

from aerobee_chassis.errors import StartError
from aerobee_wire.record import CorruptRecord
from aerobee_wire.status import Code, MqError

_Refusal = TypeVar("_Refusal", bound=StartError | MqError | CorruptRecord)


def raises_code(code: Code, about: str | None = None) -> pytest.RaisesExc[MqError]:
    """`with raises_code(Code.NO_PERMISSION): …`"""
    return pytest.raises(
        MqError, check=lambda error: error.code is code and about in (None, error.about)
    )


def raises_about(kind: type[_Refusal], about: str) -> pytest.RaisesExc[_Refusal]:
    """`with raises_about(ConfigError, "listenPort"): …`"""
    return pytest.raises(kind, check=lambda error: error.about == about)
