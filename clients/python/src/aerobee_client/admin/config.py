"""Show and change options of running services: part of AsyncAdminClient."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from aerobee.broker.v1 import config_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.brokers import BrokerAdmin
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import rpcs
from aerobee_wire.rpcs import Rpc
from aerobee_wire.status import Code, MqError


@checked_class
class ConfigAdmin(BrokerAdmin):
    async def broker_config(
        self, broker: str, *, silent: list[MqError] | None = None
    ) -> list[d.ConfigOption]:
        """Return the options of each replica of a broker, sorted by key.

        Args:
            broker: The name of the broker, or the address of one replica.
            silent: See `list_topics`.

        Returns:
            The options, with the source of each value.
        """
        return await self._shown(await self._replicas_of(broker), rpcs.GET_CONFIG, silent)

    async def proxy_config(
        self, proxy: str, *, silent: list[MqError] | None = None
    ) -> list[d.ConfigOption]:
        """Return the options of a proxy with an administration port, sorted by key.

        Args:
            proxy: The name of the proxy, as in `ClusterDescription.proxies`, or the address of its
                administration port.
            silent: See `list_topics`.

        Returns:
            The options, with the source of each value.

        Raises:
            MqError: BROKER_NOT_EXIST if no name server knows the proxy, or it has no administration
                port.
        """
        return await self._shown(await self._proxy(proxy), rpcs.GET_PROXY_CONFIG, silent)

    async def _shown(
        self,
        processes: Mapping[str, str],
        rpc: Rpc[config_pb2.GetConfigRequest, config_pb2.GetConfigResponse],
        silent: list[MqError] | None,
    ) -> list[d.ConfigOption]:
        answers = await self._brokers.ask_each(
            processes, rpc, config_pb2.GetConfigRequest(), silent=silent
        )
        return _sorted(
            d.ConfigOption(
                address=address,
                key=option.key,
                value=option.value,
                source=option.source,
                changeable=option.changeable,
            )
            for address, answer in answers.items()
            for option in answer.options
        )

    async def update_broker_config(
        self,
        broker: str,
        entries: Mapping[str, str],
        *,
        unset: Collection[str] = (),
        silent: list[MqError] | None = None,
    ) -> list[d.ConfigChange]:
        """Change options of each replica of a broker: all of `entries` and `unset`, or none.

        The changes last through restarts. They stand above the configuration file and the
        environment, and below the command line.

        Args:
            broker: The name of the broker, or the address of one replica.
            entries: The new values as text, by key.
            unset: Keys that get back the value of the start.
            silent: See `list_topics`. A replica that does not answer is not changed.

        Returns:
            The changed replicas.

        Raises:
            MqError: NO_PERMISSION if a key can only be set at the start, INVALID_PARAMETER for an
                unknown key or an invalid value, SYSTEM_ERROR if the change cannot be written.
        """
        request = config_pb2.UpdateConfigRequest(entries=entries, unset=unset)
        replicas = await self._replicas_of(broker)
        return await self._changed(replicas, rpcs.UPDATE_CONFIG, request, silent)

    async def update_proxy_config(
        self,
        proxy: str,
        entries: Mapping[str, str],
        *,
        unset: Collection[str] = (),
        silent: list[MqError] | None = None,
    ) -> list[d.ConfigChange]:
        """Change options of a proxy. See `update_broker_config`.

        The changes last through restarts only if the proxy has the option runtimeConfigPath.

        Args:
            proxy: The name of the proxy, or the address of its administration port.
            entries: The new values as text, by key.
            unset: Keys that get back the value of the start.
            silent: See `list_topics`.

        Returns:
            The changed process.

        Raises:
            MqError: As for a broker, or BROKER_NOT_EXIST as for `proxy_config`.
        """
        request = config_pb2.UpdateConfigRequest(entries=entries, unset=unset)
        process = await self._proxy(proxy)
        return await self._changed(process, rpcs.UPDATE_PROXY_CONFIG, request, silent)

    async def _changed(
        self,
        processes: Mapping[str, str],
        rpc: Rpc[config_pb2.UpdateConfigRequest, config_pb2.UpdateConfigResponse],
        request: config_pb2.UpdateConfigRequest,
        silent: list[MqError] | None,
    ) -> list[d.ConfigChange]:
        answers = await self._brokers.ask_each(processes, rpc, request, silent=silent)
        return [
            d.ConfigChange(address=address, without_effect=tuple(answer.without_effect))
            for address, answer in answers.items()
        ]

    async def namesrv_config(self, *, silent: list[MqError] | None = None) -> list[d.ConfigOption]:
        """Return the options of each name server, sorted by key.

        Args:
            silent: See `list_topics`.

        Returns:
            The options, with the source of each value.
        """
        answers = await self._brokers.ask_each(
            await self._name_servers(),
            rpcs.GET_RUNTIME_CONFIG,
            namesrv_pb2.GetRuntimeConfigRequest(),
            silent=silent,
        )
        return _sorted(
            d.ConfigOption(
                address=address,
                key=key,
                value=value,
                source=answer.sources.get(key, ""),
                changeable=key in answer.changeable,
            )
            for address, answer in answers.items()
            for key, value in answer.entries.items()
        )

    async def update_namesrv_config(
        self,
        entries: Mapping[str, str],
        *,
        unset: Collection[str] = (),
        silent: list[MqError] | None = None,
    ) -> list[d.ConfigChange]:
        """Change options of each name server. See `update_broker_config`.

        Args:
            entries: The new values as text, by key.
            unset: Keys that get back the value of the start.
            silent: See `list_topics`. A name server that does not answer is not changed.

        Returns:
            The changed name servers.

        Raises:
            MqError: NO_PERMISSION, INVALID_PARAMETER or SYSTEM_ERROR, as for a broker.
        """
        request = namesrv_pb2.UpdateRuntimeConfigRequest(entries=entries, unset=unset)
        answers = await self._brokers.ask_each(
            await self._name_servers(), rpcs.UPDATE_RUNTIME_CONFIG, request, silent=silent
        )
        return [
            d.ConfigChange(address=address, without_effect=tuple(answer.without_effect))
            for address, answer in answers.items()
        ]

    async def _replicas_of(self, broker: str) -> dict[str, str]:
        if ":" in broker:
            return {broker: broker}
        addresses = await self._brokers.addresses_of(broker)
        return {address: address for _, address in sorted(addresses.items())}

    async def _proxy(self, proxy: str) -> dict[str, str]:
        info = await self._brokers.cluster_info()
        known = {each.name: each.admin_address for each in info.proxies}
        if proxy not in known and ":" in proxy:
            return {proxy: proxy}
        address = known.get(proxy, "")
        if address:
            return {address: address}
        if proxy in known:
            raise MqError(
                Code.BROKER_NOT_EXIST,
                f"proxy {proxy!r} has no administration port: start it with "
                "enableProxyAdminGrpcServer=true",
            )
        names = ", ".join(sorted(known)) or "none"
        raise MqError(Code.BROKER_NOT_EXIST, f"no proxy {proxy!r} is registered: there are {names}")

    async def _name_servers(self) -> dict[str, str]:
        return {address: address for address in await self._instance.namesrv.present()}


def _sorted(options: Iterable[d.ConfigOption]) -> list[d.ConfigOption]:
    return sorted(options, key=lambda option: (option.key.casefold(), option.address))
