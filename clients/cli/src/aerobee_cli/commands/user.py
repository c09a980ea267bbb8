"""Define `aerobee user`: create, change, list and delete users of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from aerobee_cli import changes, output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.options import BadOption, ClusterOptions, ListingOptions, Yes, confirm
from aerobee_cli.secrets import read_secret
from aerobee_cli.table import Column, number

if TYPE_CHECKING:
    from aerobee_client.admin.descriptions import AccessChange

app = CommandGroup("user", help="Users of the cluster, who sign their calls.")

COLUMNS = (
    Column("user", "username"),
    Column("enabled", "enabled"),
    Column("super", "super"),
    number("secrets", "secrets"),
)

Name = Annotated[str, Argument(metavar="NAME", help="The access key of the user.")]
SecretFile = Annotated[
    Path | None,
    Option(metavar="FILE", help="Read the secret key from it; - is stdin. Default: a prompt."),
]
Generate = Annotated[
    bool, Option("--generate", help="Generate the secret key, and print it this once.")
]


@app.add(epilog="Example: aerobee user create billing --generate")
def create(
    *,
    name: Name,
    super: Annotated[bool, Option("--super", help="The user may do everything.")] = False,
    secret_file: SecretFile = None,
    generate: Generate = False,
    options: ClusterOptions,
) -> None:
    """Create a user. It has no rights yet, unless it is SUPER: see `aerobee acl create`.

    Exit code 3: a process does not have the user yet.
    """
    from aerobee_wire.access.users import check_name

    check_name(name)
    secret, generated = read_secret(secret_file, generate=generate)
    with _kept(name, secret if generated else ""), options.admin() as admin:
        change = admin.create_user(name, secret, super=super)
    _show(f"created user {name}", change, secret if generated else "", json=options.json)


@app.add(epilog="Example: aerobee user update billing --disable")
def update(
    *,
    name: Name,
    enable: Annotated[
        bool | None, Option("--enable/--disable", help="Whether calls of the user are served.")
    ] = None,
    super: Annotated[
        bool | None, Option("--super/--normal", help="Whether the user may do everything.")
    ] = None,
    options: ClusterOptions,
) -> None:
    """Enable or disable a user, or change its type. For its secret key, use `aerobee user rotate`.

    Exit code 3: a process does not have the change yet.
    """
    if enable is None and super is None:
        raise BadOption("nothing to change: give --enable, --disable, --super or --normal")
    with options.admin() as admin:
        change = admin.update_user(name, enabled=enable, super=super)
    _show(f"updated user {name}", change, json=options.json)


@app.add(epilog="Example: aerobee user rotate billing --generate")
def rotate(
    *,
    name: Name,
    secret_file: SecretFile = None,
    generate: Generate = False,
    finish: Annotated[
        bool, Option("--finish", help="Make only the newest secret key valid, after all clients.")
    ] = False,
    options: ClusterOptions,
) -> None:
    """Give a user a second secret key. The former one stays valid until --finish.

    Change the clients in between. Exit code 3: a process does not have the change yet.
    """
    if finish and (secret_file is not None or generate):
        raise BadOption("--finish takes no secret key: it makes the former one invalid")
    secret, generated = ("", False) if finish else read_secret(secret_file, generate=generate)
    with _kept(name, secret if generated else ""), options.admin() as admin:
        change = admin.update_user(
            name, secret=secret or None, keep_former_secret=not finish, drop_former_secret=finish
        )
    done = f"user {name} has one secret key" if finish else f"user {name} has a new secret key"
    _show(done, change, secret if generated else "", json=options.json)
    if not finish:
        output.note(f"after all clients use it: aerobee user rotate {name} --finish")


@app.add(epilog="Example: aerobee user delete billing --yes")
def delete(*, name: Name, yes: Yes = False, options: ClusterOptions) -> None:
    """Delete a user and its policies. Its calls are rejected within 2 seconds.

    Exit code 3: a process does not have the change yet.
    """
    with options.admin() as admin:
        admin.get_user(name)  # before the question
        confirm(f"Delete user {name} and its policies?", yes)
        change = admin.delete_user(name)
    _show(f"deleted user {name}", change, json=options.json)


@app.add("list", epilog="Example: aerobee user list --json")
def list_users(*, options: ListingOptions) -> None:
    """List all users, without secret keys."""
    table = options.listing(COLUMNS)
    with options.admin() as admin:
        found = output.items_of(admin.list_users())
    table.show(found, as_json=options.json, empty="no users")


@app.add(epilog="Example: aerobee user get billing --json")
def get(*, name: Name, options: ClusterOptions) -> None:
    """Show one user, without its secret keys."""
    with options.admin() as admin:
        [found] = output.items_of([admin.get_user(name)])
    output.show_one(found, as_json=options.json)


@contextmanager
def _kept(name: str, generated: str) -> Iterator[None]:
    """Print a generated secret if the block fails, because the change may have been made."""
    try:
        yield
    except BaseException:  # Ctrl-C too
        if generated:
            output.note(f"if user {name} was changed, its new secret key is {generated}")
        raise


def _show(done: str, change: AccessChange, secret: str = "", *, json: bool) -> None:
    changes.show_access(done, change, {"secret_key": secret} if secret else {}, as_json=json)
