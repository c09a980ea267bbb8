"""Read the first user of a cluster from the option initAuthenticationUser."""

from __future__ import annotations

from pathlib import Path

from aerobee_wire.access.users import User, first_user
from aerobee_wire.status import invalid_parameter

OPTION = "initAuthenticationUser"


def read_first_user(option: str) -> User | None:
    """Return the first user, or None if the option is empty.

    Args:
        option: A JSON object with username and password, or "@" and the path of a file with one.

    Raises:
        MqError: INVALID_PARAMETER if the file cannot be read, or the object is not valid. The text
            does not contain the password.
    """
    if not option:
        return None
    if option.startswith("@"):
        try:
            option = Path(option[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            problem = f"{OPTION}: cannot read {option[1:]}: {reason}"
            raise invalid_parameter(problem, about=OPTION) from None
    return first_user(option, OPTION)
