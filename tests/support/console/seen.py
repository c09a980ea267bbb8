"""What the console shows of the members of a group, asked for as one of its pages does."""

from __future__ import annotations

import asyncio
import time

from aerobee_client import AsyncAdminClient
from aerobee_console.reading.clients import client_list
from aerobee_console.reading.groups import group_page
from aerobee_console.reading.source import Source
from support.clock.polling import until_sync


def until_a_consumer_is_shown(namesrv: str, group: str) -> None:
    """Wait until a consumer with its software and proxy is shown, and its group without lag."""

    async def is_shown() -> bool:
        async with AsyncAdminClient(namesrv) as admin:
            source = Source(admin, (namesrv,), lambda: time.time_ns() // 1_000_000)
            clients = await client_list(source, group=group)
            page = await group_page(source, group)
            software = {(each.language, bool(each.version and each.proxy)) for each in clients.rows}
            return any(language and known for language, known in software) and (
                page.complete and page.lag == 0 and bool(page.members)
            )

    until_sync(lambda: asyncio.run(is_shown()), f"a consumer of {group} in the console")
