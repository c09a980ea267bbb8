"""Who a replica is: the number that an operator gives it, and the id that its store gave itself.

The store id tells an empty or exchanged disk from the one that was there before under the same
number: it is a new replica, and what was known of the old one does not hold for it.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from aerobee_broker.disk import Disk, read_file, replace_file
from aerobee_broker.errors import ConfigFileDamaged
from aerobee_wire.checked_json import decode, encode

_STORE_ID_BITS = 64


class Replica(NamedTuple):
    """`replica_id`: its number in the broker group, 0 or more, the same whatever its role.
    `store_id`: 16 hexadecimal digits."""

    replica_id: int
    store_id: str

    def __str__(self) -> str:
        return f"{self.replica_id} ({self.store_id})"


class IdentityFile:
    """`brokerIdentity.json`: the store id. Not a secret, and in no backup: a copy of the directory
    is no second store, and is refused by its id."""

    def __init__(self, disk: Disk, path: Path, rng: random.Random) -> None:
        self._disk = disk
        self._path = path
        self._rng = rng

    def load(self) -> str:
        """The store id; a new one, durable, where there is no file.

        Raises ConfigFileDamaged, OSError.
        """
        try:
            return _store_id(decode(read_file(self._disk, self._path)))
        except FileNotFoundError:
            return self.renew()
        except ValueError as error:
            raise ConfigFileDamaged(self._path, f"{self._path}: {error}") from error

    def renew(self) -> str:
        """Gives the store another id, durably: from now on it is a new replica, which is in no
        in-sync set. For a store that may have lost what it confirmed. Raises OSError."""
        store_id = f"{self._rng.getrandbits(_STORE_ID_BITS):016x}"
        self._disk.make_directory(self._path.parent)
        replace_file(self._disk, self._path, encode({"storeId": store_id}))
        return store_id


def _store_id(content: dict[str, object]) -> str:
    store_id = content.get("storeId")
    if not isinstance(store_id, str) or not store_id:
        raise ValueError("storeId is missing")
    return store_id
