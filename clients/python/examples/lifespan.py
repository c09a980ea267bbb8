"""Clients that live as long as a web application: the lifespan of FastAPI, Starlette and the like.

`app = FastAPI(lifespan=lifespan)`; a request handler then uses `request.state.producer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aerobee_client import AsyncProducer, AsyncPushConsumer, Message, ReceivedMessage

consumed: asyncio.Queue[bytes] = asyncio.Queue()


async def on_message(message: ReceivedMessage) -> None:
    await consumed.put(message.body)


@asynccontextmanager
async def lifespan(app: Any) -> AsyncIterator[dict[str, Any]]:
    """Runs in each worker, so after the fork; what it yields becomes the state of requests."""
    consumer = AsyncPushConsumer("lifespan-example", on_message)
    consumer.subscribe("seats")
    async with AsyncProducer() as producer, consumer:
        yield {"producer": producer}


async def main() -> None:
    """What a server does: it starts, handles a request and stops."""
    async with lifespan(None) as state:
        await state["producer"].send(Message("seats", b"seat 17A"))
        print("consumed", await asyncio.wait_for(consumed.get(), timeout=60))


asyncio.run(main())
