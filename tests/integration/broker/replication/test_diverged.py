"""What an old master had and no other replica: kept when it is cut, shown, and sent again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aerobee_client import AdminClient
from support.broker.calls import BrokerCaller
from support.processes.broker_group import BROKER, BrokerGroup, broker_group
from support.processes.service import run

TOPIC = "orders"
COPIES = "totalReplicas=2"


def command(group: BrokerGroup, verb: str, *arguments: str) -> Any:
    """What `aerobee broker diverged` prints as JSON."""
    given = ("broker", "diverged", verb, group.name, *arguments)
    done = run("aerobee_cli", *given, "--json", "--namesrv", group.namesrv)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def properties(message_id: str, **others: str) -> dict[str, str]:
    return {"UNIQ_KEY": message_id, **others}


async def test_what_only_the_old_master_had_is_shown_and_sent_again(tmp_path: Path) -> None:
    with broker_group(tmp_path) as group:
        old = group.add("brokerRole=ASYNC_MASTER", COPIES)
        new = group.add("brokerRole=SLAVE", COPIES)
        group.until_in_sync(old, new)
        async with BrokerCaller(old.address) as caller:
            await caller.send(TOPIC, b"replicated", properties=properties("A0"))
            group.until_alike(old, new)
            new.process.kill()
            await caller.send(
                TOPIC, b"lost", properties=properties("A1", KEYS="k1 k2", TAGS="late"), flag=7
            )
            await caller.send(TOPIC, b"twice", queue_id=1, properties=properties("A2"))
            await caller.send(TOPIC, b"delayed", properties=properties("A3", DELAY="1"))
            await caller.send(TOPIC, b"timed", properties=properties("A4", TIMER_DELAY_MS="1000"))
            await caller.send_half(TOPIC, b"half")
        old.process.kill()
        new.start()
        with AdminClient(group.namesrv) as admin:
            admin.promote_replica(BROKER, to=new.number, unclean=True)
        async with BrokerCaller(new.address) as caller:
            # As a producer does whose first try had no answer.
            await caller.send(TOPIC, b"twice", queue_id=1, properties=properties("A2"))
        old.start()
        group.until_in_sync(new, old)

        [file] = command(group, "list")
        assert (file["replica_id"], file["epoch"]) == (old.number, 1)
        shown = {each["message_id"]: each for each in command(group, "show", file["name"])}
        kinds = {
            name: (each["kind"], each["topic"], each["stored"]) for name, each in shown.items()
        }
        half = next(name for name, each in shown.items() if each["kind"] == "half message")
        assert kinds == {
            "A1": ("message", TOPIC, False),
            "A2": ("message", TOPIC, True),
            "A3": ("delayed", TOPIC, False),
            "A4": ("delayed", TOPIC, False),
            half: ("half message", TOPIC, False),
        }
        first = shown["A1"]
        assert (first["keys"], first["tag"], first["body_size"]) == ("k1 k2", "late", 4)

        dry = command(group, "resend", "--dry-run")
        assert (dry["sent"], dry["in_the_log"], dry["half_messages"]) == (3, 1, 1)
        async with BrokerCaller(new.address) as caller:
            assert len(await caller.read(TOPIC)) == 1
        assert command(group, "resend")["sent"] == 3
        assert command(group, "resend")["sent"] == 0  # once more sends nothing twice

        async with BrokerCaller(new.address) as caller:
            while len(found := await caller.read(TOPIC)) < 4:  # the delayed ones too
                pass
            again = await caller.read(TOPIC, queue_id=1)
        resent = {message.properties["UNIQ_KEY"]: message for message in found}
        assert {name: message.body for name, message in resent.items()} == {
            "A0": b"replicated",
            "A1": b"lost",
            "A3": b"delayed",
            "A4": b"timed",
        }
        assert [message.body for message in again] == [b"twice"]
        lost = resent["A1"]
        assert (lost.flag, lost.properties["KEYS"], lost.properties["TAGS"]) == (7, "k1 k2", "late")
        where = f"{BROKER}/{old.number}/{file['name']}/{first['physical_offset']}"
        assert lost.properties["RESENT_FROM"] == where
        assert all("RESENT_FROM" in resent[name].properties for name in ("A3", "A4"))
