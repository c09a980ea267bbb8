"""A process that sends transactions and writes down what it meant; made to be killed.

    python -m support.client.programs.transacting NAMESRV DATABASE STEP

`DATABASE`: a file that stands for the database of the program: a line is durable there before the
transaction of its message is committed, and is missing when that was rolled back. `STEP`: where it
says "here" and hangs: "half" (its message is stored), "written" (so is the line), "ended" (its
commit has left, and it does not wait for the answer); "never": transactions side by side, a third
of which it rolls back.
"""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import timedelta
from itertools import count
from pathlib import Path

from aerobee_client import (
    AsyncTransactionProducer,
    Message,
    MqError,
    ReceivedMessage,
    TransactionResolution,
)
from support.clock.polling import until

TOPIC = "orders"
GROUP = "shop"
SIDE_BY_SIDE = 8


class Database:
    def __init__(self, path: Path) -> None:
        self.path = path

    def rows(self) -> set[bytes]:
        return set(self.path.read_bytes().split()) if self.path.exists() else set()

    async def grows(self, count: int) -> None:
        """Until there are so many rows more."""
        before = len(self.rows())
        await until(lambda: len(self.rows()) >= before + count, f"{count} rows more", timeout_s=60)

    def insert(self, row: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(row + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def check(self, message: ReceivedMessage) -> TransactionResolution:
        known = message.body in self.rows()
        return TransactionResolution.COMMIT if known else TransactionResolution.ROLLBACK


class CancelledOrder(Exception):
    """The program decides to roll back."""


async def hang() -> None:
    print("here", flush=True)
    await asyncio.Event().wait()


async def stop_at(step: str, producer: AsyncTransactionProducer, database: Database) -> None:
    async with producer.transaction(Message(TOPIC, step.encode())) as tx:
        if step == "half":
            await hang()
        database.insert(step.encode())
        if step == "ended":
            committing = asyncio.create_task(tx.commit())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await hang()
            await committing
        await hang()


async def never_stop(line: int, producer: AsyncTransactionProducer, database: Database) -> None:
    for number in count():
        body = b"%d-%d-%d" % (os.getpid(), line, number)
        try:
            async with producer.transaction(Message(TOPIC, body)):
                if number % 3 == 0:
                    raise CancelledOrder
                database.insert(body)
        except (MqError, CancelledOrder):
            continue  # what the broker was not told of it asks about


async def main(namesrv: str, path: str, step: str) -> None:
    database = Database(Path(path))
    async with AsyncTransactionProducer(
        GROUP, database.check, namesrv=namesrv, send_timeout=timedelta(seconds=2)
    ) as producer:
        if step != "never":
            await stop_at(step, producer, database)
        lines = (never_stop(line, producer, database) for line in range(SIDE_BY_SIDE))
        await asyncio.gather(*lines)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
