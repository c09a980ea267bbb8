"""Implement the RPCs of proxies: RegisterProxy and UnregisterProxy.

Codes: INVALID_PARAMETER (a name or a process id is empty or too long).

Apache's server does not know proxies.
"""

from __future__ import annotations

import asyncio

import structlog
from aerobee.namesrv.v1 import namesrv_pb2 as pb

from aerobee_chassis.rpc.call import Call
from aerobee_namesrv.routing.proxies import ProxyProcess, ProxyTable
from aerobee_namesrv.rpc import checks


class ProxyRpcs:
    def __init__(self, proxies: ProxyTable) -> None:
        self._proxies = proxies
        self._closing = asyncio.Event()

    async def register_proxy(self, request: pb.RegisterProxyRequest, call: Call) -> None:
        process = ProxyProcess(
            name=checks.name("name", request.name),
            admin_address=request.admin_address,
            process_id=checks.name("process_id", request.process_id),
            version=request.version,
            start_timestamp_ms=request.start_timestamp_ms,
        )
        log = structlog.get_logger().bind(proxy=process.name, peer=call.peer)
        with self._proxies.register(process):
            log.info("proxy_registered", version=process.version)
            await call.write(pb.RegisterProxyResponse())
            try:
                await self._closing.wait()
            finally:
                log.info("proxy_stream_ended")

    async def unregister_proxy(
        self, request: pb.UnregisterProxyRequest, call: Call
    ) -> pb.UnregisterProxyResponse:
        self._proxies.unregister(
            checks.name("name", request.name), checks.name("process_id", request.process_id)
        )
        return pb.UnregisterProxyResponse()

    def close(self) -> None:
        """End the streams when the name server stops."""
        self._closing.set()
