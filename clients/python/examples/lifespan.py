"""Start and stop clients with a web application, in the lifespan of FastAPI or Starlette.

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
    """Start the clients of a worker, after the fork. Requests have the result as their state."""
    consumer = AsyncPushConsumer("lifespan-example", on_message)
    consumer.subscribe("seats")
    async with AsyncProducer() as producer, consumer:
        yield {"producer": producer}


async def main() -> None:
    """Do the same as a server: start, handle a request and stop."""
    async with lifespan(None) as state:
        await state["producer"].send(Message("seats", b"seat 17A"))
        print("consumed", await asyncio.wait_for(consumed.get(), timeout=60))


asyncio.run(main())
