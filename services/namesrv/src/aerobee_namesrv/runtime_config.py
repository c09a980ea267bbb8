"""The options of a running name server: those of its start, and the changes in `runtime.json`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import structlog

from aerobee_chassis.errors import ConfigError, StartError
from aerobee_chassis.runtime_options import FixedOption, RuntimeOptions
from aerobee_namesrv.config import NamesrvOptions
from aerobee_namesrv.kv_config import replace_file
from aerobee_wire.checked_json import decode, encode
from aerobee_wire.status import Code, MqError


class RuntimeConfig:
    """The current options, and the file with their changes.

    `replace` writes the file; tests pass a function that fails.
    """

    def __init__(
        self, options: NamesrvOptions, replace: Callable[[Path, bytes], None] = replace_file
    ) -> None:
        self.runtime = RuntimeOptions(options)
        self._path = options.runtime_path
        self._replace = replace

    @property
    def now(self) -> NamesrvOptions:
        return self.runtime.now

    def load(self) -> None:
        """Use the changes in the file, if there is one.

        Raises StartError if it cannot be read, or if a value does not fit the other options.
        """
        try:
            saved = decode(self._path.read_bytes())
            without_effect = self.runtime.restore(saved)
        except FileNotFoundError:
            return
        except OSError as error:
            raise StartError(
                f"cannot use {self._path}: {error.strerror}", str(self._path)
            ) from None
        except (ValueError, ConfigError) as error:
            raise StartError(
                f"{self._path} has no changes at run time of a name server: {error}; restore the "
                "file, or set configStorePath to another one",
                str(self._path),
            ) from None
        log = structlog.get_logger()
        log.info("options_restored", changed=dict(self.runtime.saved), file=str(self._path))
        if without_effect:
            log.warning("runtime_options_without_effect", keys=without_effect)

    def update(self, entries: Mapping[str, str], unset: Collection[str] = ()) -> tuple[str, ...]:
        """Change options, durably: all or none.

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
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._replace(self._path, encode(change.saved))
        except OSError as error:
            raise MqError(
                Code.SYSTEM_ERROR,
                f"{self._path} cannot be written ({error.strerror}), and nothing was changed: "
                "repair the disk, or make room, and retry",
                about=str(self._path),
                retryable=True,
            ) from error
        self.runtime.take(change)
        return change.without_effect
