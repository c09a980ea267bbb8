"""What a test says of an error: the code that it has, never its words."""

from __future__ import annotations

import pytest

from aerobee_wire.status import Code, MqError


def raises_code(code: Code) -> pytest.RaisesExc[MqError]:
    """`with raises_code(Code.NO_PERMISSION): …`"""
    return pytest.raises(MqError, check=lambda error: error.code is code)
