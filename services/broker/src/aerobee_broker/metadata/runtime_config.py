"""The options of a running broker: those of its start, and the changes in `config/runtime.json`.

The file belongs to this process: in a broker with replicas, each replica has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path

import structlog

from aerobee_broker.commit.worker_thread import Worker
from aerobee_broker.config import BrokerOptions
from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged, InvalidParameter, NoPermission
from aerobee_chassis.errors import ConfigError
from aerobee_chassis.runtime_options import FILE_NAME, FixedOption, RuntimeOptions
from aerobee_wire.checked_json import decode, encode
from aerobee_wire.files import outcome_of
from aerobee_wire.status import Code, MqError


class RuntimeConfig:
    """The current options, and the file with their changes. Only the event loop uses it."""

    def __init__(self, options: BrokerOptions, disk: Disk, store: Path, writer: Worker) -> None:
        """Create the object without reading the file. `store` is the directory of the store."""
        self.runtime = RuntimeOptions(options)
        self.path = store / "config" / FILE_NAME
        self._disk = disk
        self._writer = writer
        self._turn = asyncio.Lock()  # a change is written before the next one is checked

    @property
    def options(self) -> BrokerOptions:
        return self.runtime.now

    def load(self) -> None:
        """Use the changes in the file, if there is one.

        Raises ConfigFileDamaged if it cannot be read, or if a value does not fit the other options.
        """
        try:
            saved = decode(read_file(self._disk, self.path))
        except FileNotFoundError:
            return
        except ValueError as error:
            raise ConfigFileDamaged(
                self.path, f"{self.path}: {error}", "restore the file, or remove it"
            ) from None
        try:
            without_effect = self.runtime.restore(saved)
        except ConfigError as error:
            advice = "set the other option, or remove the key from the file"
            raise ConfigFileDamaged(self.path, f"{self.path}: {error}", advice) from None
        log = structlog.get_logger()
        log.info("options_restored", changed=dict(self.runtime.saved), file=str(self.path))
        if without_effect:
            log.warning("runtime_options_without_effect", keys=without_effect)

    async def update(
        self, entries: Mapping[str, str], unset: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Change options, durably: all or none.

        Returns the keys without effect, because the command line sets them. Raises NoPermission for
        a key that can only be set at the start, InvalidParameter, and MqError with the code
        SYSTEM_ERROR if the file cannot be written.
        """
        async with self._turn:
            try:
                change = self.runtime.change(entries, unset)
            except FixedOption as error:
                raise NoPermission(str(error), error.about) from None
            except ConfigError as error:
                raise InvalidParameter(str(error), error.about) from None
            try:
                await self._writer(partial(self._write, change.saved))
            except OSError as error:
                raise MqError(
                    Code.SYSTEM_ERROR,
                    f"{self.path} cannot be written ({error.strerror}), and {outcome_of(error)}: "
                    "repair the disk, or make room, and retry",
                    about=str(self.path),
                    retryable=True,
                ) from error
            self.runtime.take(change)
        return change.without_effect

    def _write(self, saved: Mapping[str, str]) -> None:
        self._disk.make_directory(self.path.parent)
        replace_file(self._disk, self.path, encode(saved))
