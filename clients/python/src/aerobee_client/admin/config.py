"""Show and change options of running brokers and name servers: part of AsyncAdminClient."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from aerobee.broker.v1 import config_pb2
from aerobee.namesrv.v1 import namesrv_pb2

from aerobee_client.admin import descriptions as d
from aerobee_client.admin.brokers import BrokerAdmin
from aerobee_client.runtime.kinds import checked_class
from aerobee_wire import rpcs
from aerobee_wire.status import MqError


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
        answers = await self._brokers.ask_each(
            await self._replicas_of(broker),
            rpcs.GET_CONFIG,
            config_pb2.GetConfigRequest(),
            silent=silent,
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
        answers = await self._brokers.ask_each(
            await self._replicas_of(broker), rpcs.UPDATE_CONFIG, request, silent=silent
        )
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
            self._name_servers(),
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
            self._name_servers(), rpcs.UPDATE_RUNTIME_CONFIG, request, silent=silent
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

    def _name_servers(self) -> dict[str, str]:
        return {address: address for address in self._instance.namesrv.addresses}


def _sorted(options: Iterable[d.ConfigOption]) -> list[d.ConfigOption]:
    return sorted(options, key=lambda option: (option.key.casefold(), option.address))
