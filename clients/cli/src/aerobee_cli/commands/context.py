"""Define `aerobee context`: keep the addresses and credentials of clusters for later commands."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import click

from aerobee_cli import output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.contexts import (
    Connection,
    Contexts,
    check_secret_file,
    default_directory,
    variables_set,
)
from aerobee_cli.options import BadOption, Json, TableOptions, Yes, confirm, context_named
from aerobee_cli.secrets import read_secret
from aerobee_cli.table import Column

app = CommandGroup("context", help="Addresses and credentials of clusters, by name.")

COLUMNS = (
    Column("context", "name"),
    Column("current", "current"),
    Column("name servers", "namesrv"),
    Column("user", "access_key"),
    Column("proxy", "proxy", extra=True),
    Column("authority", "tls_ca", extra=True),
)
STDIN = Path("-")

Name = Annotated[str, Argument(metavar="NAME", help="Name of the context.")]


@app.add(
    epilog="Example: aerobee context add prod --namesrv 10.0.0.5:9876 --access-key ops "
    "--tls-ca ca.crt --use"
)
def add(
    *,
    name: Name,
    namesrv: Annotated[str, Option("--namesrv", metavar="H:P;H:P", help="Name servers.")],
    proxy: Annotated[
        str, Option(metavar="H:P", help="A proxy, for `aerobee doctor --from proxy`.")
    ] = "",
    access_key: Annotated[str, Option(metavar="USER", help="The user who signs calls.")] = "",
    secret_key_file: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="The secret key of the user; - is stdin. Default: a prompt. What is entered is "
            "kept beside the context.",
        ),
    ] = None,
    tls_ca: Annotated[
        Path | None, Option(metavar="FILE", help="The authority of the servers' certificates.")
    ] = None,
    tls_certificate: Annotated[
        Path | None, Option(metavar="FILE", help="The certificate of the command.")
    ] = None,
    tls_key: Annotated[Path | None, Option(metavar="FILE", help="Its key.")] = None,
    tls_verify: Annotated[
        str, Option(metavar="name|host", help="Which name servers must prove. Default: name.")
    ] = "",
    tls_cluster: Annotated[str, Option(metavar="NAME", help="Cluster in the certificates.")] = "",
    use: Annotated[bool, Option("--use", help="Use it for later commands.")] = False,
    replace: Annotated[bool, Option("--replace", help="Replace a context of this name.")] = False,
    json: Json = False,
) -> None:
    """Add a context: how to connect to a cluster, and as which user.

    Only you may read its file. No command prints the secret key.
    """
    from aerobee_client import Tls
    from aerobee_client.cluster.namesrv import namesrv_addresses
    from aerobee_wire.access.users import check_name, check_secret

    namesrv_addresses(namesrv)
    if proxy and len(namesrv_addresses(proxy)) > 1:
        raise BadOption("--proxy: give the address of one proxy")
    ca, certificate, key = map(_file, (tls_ca, tls_certificate, tls_key))
    if any((ca, certificate, key, tls_verify, tls_cluster)):
        Tls(ca, certificate, key, tls_verify or "name")  # type: ignore[arg-type]  # it checks it
    secret = ""
    if access_key:
        check_name(access_key)
        if secret_key_file is None or secret_key_file == STDIN:
            secret, _ = read_secret(secret_key_file, generate=False, options="--secret-key-file")
            check_secret(secret.encode())
        else:
            check_secret_file(secret_key_file)
    elif secret_key_file is not None:
        raise BadOption("--secret-key-file: give --access-key too, the name of the user")
    kept = "" if secret or secret_key_file is None else str(secret_key_file.absolute())
    contexts = Contexts(default_directory())
    connection = contexts.add(
        name,
        Connection(namesrv, proxy, access_key, kept, ca, certificate, key, tls_verify, tls_cluster),
        secret,
        replace=replace,
    )
    if use:
        contexts.use(name)
    _show_one(contexts, name, connection, json=json)


@app.add("list", epilog="Example: aerobee context list --json")
def list_contexts(*, shown: TableOptions, json: Json = False) -> None:
    """List the contexts, and which of them is the current one."""
    table = shown.listing(COLUMNS)
    contexts = Contexts(default_directory())
    found = [_item(contexts, name, contexts.get(name)) for name in contexts.names()]
    table.show(found, as_json=json, empty="no contexts: aerobee context add")


@app.add(epilog="Example: aerobee context show prod")
def show(
    context: click.Context,
    *,
    name: Annotated[
        str, Argument(metavar="[NAME]", help="Default: the context that commands use here.")
    ] = "",
    json: Json = False,
) -> None:
    """Show a context, without its secret key."""
    contexts = Contexts(default_directory())
    chosen = name or contexts.chosen(context_named(context))
    if not chosen:
        raise BadOption("commands use no context here: give NAME, or see aerobee context list")
    _show_one(contexts, chosen, contexts.get(chosen), json=json)


@app.add(epilog="Example: aerobee context use prod")
def use(
    *,
    name: Annotated[str, Argument(metavar="[NAME]", help="Name of the context.")] = "",
    none: Annotated[bool, Option("--none", help="Use no context from now on.")] = False,
) -> None:
    """Use a context for all later commands that name none, in all shells."""
    if bool(name) == none:
        raise BadOption("give the name of a context, or --none")
    Contexts(default_directory()).use(name)
    if variables := variables_set():
        output.note(f"in this shell it has no effect: unset {' '.join(variables)}")


@app.add(epilog="Example: aerobee context remove prod --yes")
def remove(*, name: Name, yes: Yes = False) -> None:
    """Remove a context, and the secret key that is kept with it."""
    confirm(f"Remove context {name} and the secret key that is kept with it?", yes)
    Contexts(default_directory()).remove(name)


def _file(given: Path | None) -> str:
    """Return the absolute path of a file, or "". Raises BadOption if it cannot be read."""
    if given is None:
        return ""
    try:
        given.open("rb").close()
    except OSError as error:
        raise BadOption(f"{given}: {error.strerror}") from None
    return str(given.absolute())


def _show_one(contexts: Contexts, name: str, connection: Connection, *, json: bool) -> None:
    output.show_one(_item(contexts, name, connection), as_json=json)


def _item(contexts: Contexts, name: str, connection: Connection) -> dict[str, object]:
    return {"name": name, "current": contexts.current() == name, **asdict(connection)}
