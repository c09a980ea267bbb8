"""Keep the options of a running service: those of its start, and the changes in a file."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import Generic, Protocol

import structlog

from aerobee_chassis import logs
from aerobee_chassis.config import OptionsType
from aerobee_chassis.errors import ConfigError, StartError
from aerobee_chassis.runtime_options import FixedOption, RuntimeOptions
from aerobee_wire.checked_json import decode, encode
from aerobee_wire.files import outcome_of, replace_file
from aerobee_wire.status import Code, MqError


class OptionsFile(Protocol):
    """The file with the changes. The broker has one on its own disk, which tests simulate."""

    @property
    def path(self) -> Path: ...

    def read(self) -> bytes:
        """Return the content. Raises FileNotFoundError if it is missing, and another OSError."""

    async def replace(self, data: bytes) -> None:
        """Replace the file durably, or create it. Raises OSError."""


class LocalFile:
    """An `OptionsFile` that is written on the event loop. Tests pass a `replace` that fails."""

    def __init__(self, path: Path, replace: Callable[[Path, bytes], None] = replace_file) -> None:
        self.path = path
        self._replace = replace

    def read(self) -> bytes:
        return self.path.read_bytes()

    async def replace(self, data: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._replace(self.path, data)


class RuntimeConfig(Generic[OptionsType]):
    """The current options, and the file with their changes. Only the event loop uses it.

    Args:
        options: The options of the start.
        file: The file. If it is None, changes last until the process ends.
        remedy: How to start in spite of a damaged file, for the error.
    """

    def __init__(
        self,
        options: OptionsType,
        file: OptionsFile | None,
        *,
        remedy: str = "restore the file, or remove it",
    ) -> None:
        self.runtime = RuntimeOptions(options)
        self._file = file
        self._remedy = remedy
        self._turn = asyncio.Lock()  # a change is written before the next one is checked
        self._running: set[asyncio.Task[tuple[str, ...]]] = set()

    @property
    def now(self) -> OptionsType:
        return self.runtime.now

    def load(self) -> None:
        """Use the changes in the file, if there is one.

        Raises StartError if it cannot be read, or if a value does not fit the other options.
        """
        if self._file is None:
            return
        path, started = self._file.path, self.now
        try:
            without_effect = self.runtime.restore(decode(self._file.read()))
        except FileNotFoundError:
            return
        except OSError as error:
            raise StartError(f"cannot use {path}: {error.strerror}", str(path)) from None
        except (ValueError, ConfigError) as error:
            raise StartError(
                f"{path} has no changes of options at run time: {error}; {self._remedy}", str(path)
            ) from None
        log = structlog.get_logger()
        log.info("options_restored", changed=dict(self.runtime.saved), file=str(path))
        if without_effect:
            log.warning("runtime_options_without_effect", keys=without_effect)
        self._use_log_level(started)

    async def change(
        self,
        entries: Mapping[str, str],
        unset: Collection[str],
        peer: str,
        use: Callable[[OptionsType], Awaitable[None]] | None = None,
    ) -> tuple[str, ...]:
        """Do the same as `update` for a caller, then put the options into effect with `use`.

        A caller that disconnects does not end the change. Otherwise a thread might still write the
        file, and the process would run without its options.
        """

        async def run() -> tuple[str, ...]:
            without_effect = await self.update(entries, unset)
            log = structlog.get_logger()
            log.info("options_changed", peer=peer, changed=dict(entries), unset=list(unset))
            if use is not None:
                await use(self.now)
            return without_effect

        task = asyncio.create_task(run())
        self._running.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def update(
        self, entries: Mapping[str, str], unset: Collection[str] = ()
    ) -> tuple[str, ...]:
        """Change options: all or none. With a file, the change is durable.

        Returns the keys without effect, because the command line sets them.

        Raises MqError with the code NO_PERMISSION for a key that can only be set at the start,
        INVALID_PARAMETER for an unknown key or an invalid value, and SYSTEM_ERROR if the file
        cannot be written.
        """
        async with self._turn:
            before = self.now
            try:
                change = self.runtime.change(entries, unset)
            except FixedOption as error:
                raise MqError(Code.NO_PERMISSION, str(error), about=error.about) from None
            except ConfigError as error:
                raise MqError(Code.INVALID_PARAMETER, str(error), about=error.about) from None
            if self._file is not None:
                await _replace(self._file, change.saved)
            self.runtime.take(change)
            self._use_log_level(before)
        return change.without_effect

    def _use_log_level(self, before: OptionsType) -> None:
        if self.now.log_level != before.log_level:
            logs.set_level(self.now.log_level)


async def _replace(file: OptionsFile, saved: Mapping[str, str]) -> None:
    try:
        await file.replace(encode(saved))
    except OSError as error:
        raise MqError(
            Code.SYSTEM_ERROR,
            f"{file.path} cannot be written ({error.strerror}), and {outcome_of(error)}: repair "
            "the disk, or make room, and retry",
            about=str(file.path),
            retryable=True,
        ) from error
