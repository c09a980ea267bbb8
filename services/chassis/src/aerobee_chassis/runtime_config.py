"""Keep the options of a running service: those of its start, and the changes in a file.

A service whose disk is simulated in tests has a class of its own: the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Generic

import structlog

from aerobee_chassis.config import OptionsType
from aerobee_chassis.errors import ConfigError, StartError
from aerobee_chassis.runtime_options import FixedOption, RuntimeOptions
from aerobee_wire.checked_json import decode, encode
from aerobee_wire.files import outcome_of, replace_file
from aerobee_wire.status import Code, MqError

Replace = Callable[[Path, bytes], None]


class RuntimeConfig(Generic[OptionsType]):
    """The current options, and the file with their changes.

    Args:
        options: The options of the start.
        path: The file. If it is None, changes last until the process ends.
        option: The option with the path of the file, for an error.
        replace: Writes the file; tests pass a function that fails.
    """

    def __init__(
        self,
        options: OptionsType,
        path: Path | None,
        *,
        option: str,
        replace: Replace = replace_file,
    ) -> None:
        self.runtime = RuntimeOptions(options)
        self._path = path
        self._option = option
        self._replace = replace

    @property
    def now(self) -> OptionsType:
        return self.runtime.now

    def load(self) -> None:
        """Use the changes in the file, if there is one.

        Raises StartError if it cannot be read, or if a value does not fit the other options.
        """
        path = self._path
        if path is None:
            return
        try:
            saved = decode(path.read_bytes())
            without_effect = self.runtime.restore(saved)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StartError(f"cannot use {path}: {error.strerror}", str(path)) from None
        except (ValueError, ConfigError) as error:
            raise StartError(
                f"{path} has no changes of options at run time: {error}; restore the file, or set "
                f"{self._option} to another one",
                str(path),
            ) from None
        log = structlog.get_logger()
        log.info("options_restored", changed=dict(self.runtime.saved), file=str(path))
        if without_effect:
            log.warning("runtime_options_without_effect", keys=without_effect)

    def update(self, entries: Mapping[str, str], unset: Collection[str] = ()) -> tuple[str, ...]:
        """Change options: all or none. With a file, the change is durable.

        Returns the keys without effect, because the command line sets them.

        Raises MqError with the code NO_PERMISSION for a key that can only be set at the start,
        INVALID_PARAMETER for an unknown key or an invalid value, and SYSTEM_ERROR if the file
        cannot be written.
        """
        try:
            change = self.runtime.change(entries, unset)
        except FixedOption as error:
            raise MqError(Code.NO_PERMISSION, str(error), about=error.about) from None
        except ConfigError as error:
            raise MqError(Code.INVALID_PARAMETER, str(error), about=error.about) from None
        if self._path is not None:
            self._write(self._path, change.saved)
        self.runtime.take(change)
        return change.without_effect

    def _write(self, path: Path, saved: Mapping[str, str]) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._replace(path, encode(saved))
        except OSError as error:
            raise MqError(
                Code.SYSTEM_ERROR,
                f"{path} cannot be written ({error.strerror}), and {outcome_of(error)}: repair the "
                "disk, or make room, and retry",
                about=str(path),
                retryable=True,
            ) from error
