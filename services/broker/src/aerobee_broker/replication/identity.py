"""Identify a replica by the number that its operator gave it and the id of its store.

The store id distinguishes an empty or exchanged disk from the previous disk with the same number. A
replica with such a disk is a new replica, and knowledge about the old one does not apply to it.
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
    """The identity of a replica.

    `replica_id` is its number in the broker group: 0 or more, and independent of its role.
    `store_id` is 16 hexadecimal digits.
    """

    replica_id: int
    store_id: str

    def __str__(self) -> str:
        return f"{self.replica_id} ({self.store_id})"


class IdentityFile:
    """Keep the store id in `brokerIdentity.json`.

    The store id is not a secret, and the file has no backup copy. A copy of the directory must not
    count as a second store, so the master refuses it because of the equal id.
    """

    def __init__(self, disk: Disk, path: Path, rng: random.Random) -> None:
        self._disk = disk
        self._path = path
        self._rng = rng

    def load(self) -> str:
        """Return the store id; create one durably if there is no file.

        Raises ConfigFileDamaged, OSError.
        """
        try:
            return _store_id(decode(read_file(self._disk, self._path)))
        except FileNotFoundError:
            return self.renew()
        except ValueError as error:
            raise ConfigFileDamaged(self._path, f"{self._path}: {error}") from error

    def renew(self) -> str:
        """Give the store a new id, durably, and return it. Raises OSError.

        The store then counts as a new replica, which is in no in-sync set. Use this for a store
        that may have lost confirmed messages.
        """
        store_id = f"{self._rng.getrandbits(_STORE_ID_BITS):016x}"
        self._disk.make_directory(self._path.parent)
        replace_file(self._disk, self._path, encode({"storeId": store_id}))
        return store_id


def _store_id(content: dict[str, object]) -> str:
    store_id = content.get("storeId")
    if not isinstance(store_id, str) or not store_id:
        raise ValueError("storeId is missing")
    return store_id
