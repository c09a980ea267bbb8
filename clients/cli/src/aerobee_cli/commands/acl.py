"""Define `aerobee acl`: the policies of users, and what they decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from aerobee_cli import changes, output
from aerobee_cli.command_line import Argument, CommandGroup, Option
from aerobee_cli.errors import CommandError
from aerobee_cli.options import (
    BadOption,
    ClusterOptions,
    DryRun,
    ListingOptions,
    NamesrvOptions,
    Yes,
    confirm,
    end,
)
from aerobee_cli.table import Column, Table
from aerobee_wire.access.policies import Policy, policy
from aerobee_wire.access.users import User, check_name, parse_users
from aerobee_wire.printable import printable
from aerobee_wire.status import Code, MqError, invalid_parameter
from aerobee_wire.topics import group_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from aerobee_client import AdminClient
    from aerobee_client.admin.descriptions import PolicyDescription
    from aerobee_wire.access.policies import Policy
    from aerobee_wire.access.users import User


app = CommandGroup("acl", help="Policies: what users may do.")

COLUMNS = (
    Column("user", "username"),
    Column("resource", "resource"),
    Column("actions", "actions"),
    Column("decision", "decision"),
    Column("type", "policy_type"),
    Column("source ips", "source_ips", extra=True),
)
SUBJECT = "User:"  # RocketMQ's form of a subject

User_ = Annotated[str, Argument(metavar="USER", help="The user: NAME, or User:NAME.")]
Resources = Annotated[
    list[str],
    Option(
        "--resource",
        metavar="R",
        help="Topic:, Group:, Namespace: or Cluster: with a name, a PREFIX* or *; or * for all. As "
        "often as needed.",
    ),
]
Actions = Annotated[
    str,
    Option(metavar="A,...", help="All, or of Pub, Sub, Create, Update, Delete, Get, List."),
]
SourceIps = Annotated[
    list[str] | None,
    Option("--source-ip", metavar="CIDR", help="Only calls from this network. As often as needed."),
]
Deny = Annotated[bool, Option("--deny", help="Deny, instead of allow.")]
Default = Annotated[
    bool, Option("--default", help="Of type DEFAULT: counts only if no other policy matches.")
]


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """The options that describe policies of a user, one for each resource."""

    resource: Resources
    actions: Actions
    source_ip: SourceIps = None
    deny: Deny = False
    default: Default = False

    def policies(self) -> list[PolicyDescription]:
        from aerobee_client.admin.descriptions import PolicyDescription

        return [
            PolicyDescription(
                resource=resource,
                actions=tuple(part.strip() for part in self.actions.split(",")),
                decision="DENY" if self.deny else "ALLOW",
                policy_type="DEFAULT" if self.default else "CUSTOM",
                source_ips=tuple(self.source_ip or ()),
            )
            for resource in self.resource
        ]


@app.add(epilog="Example: aerobee acl create billing --resource 'Topic:orders*' --actions Pub,Sub")
def create(
    *,
    user: User_,
    given: PolicyOptions,
    options: ClusterOptions,
) -> None:
    """Add policies of a user. Exit code 3: a process does not have the change yet."""
    made = given.policies()
    with options.admin() as admin:
        change = admin.create_policies(_name(user), made)
        _warn_of_missing(admin, _name(user))
    done = "\n".join(f"created: {each}" for each in made)
    changes.show_access(done, change, {}, as_json=options.json)


@app.add(epilog="Example: aerobee acl update billing --resource Topic:orders --actions Sub")
def update(
    *,
    user: User_,
    given: PolicyOptions,
    options: ClusterOptions,
) -> None:
    """Replace actions and networks of policies with the same resource, decision and type.

    Exit code 3: a process does not have the change yet.
    """
    made = given.policies()
    with options.admin() as admin:
        change = admin.update_policies(_name(user), made)
    done = "\n".join(f"updated: {each}" for each in made)
    changes.show_access(done, change, {}, as_json=options.json)


@app.add(epilog="Example: aerobee acl delete billing --resource 'Topic:orders*' --yes")
def delete(
    *,
    user: User_,
    resource: Annotated[
        str, Option(metavar="R", help="Only policies of exactly this resource.")
    ] = "",
    policy_type: Annotated[
        str, Option("--type", metavar="T", help="Only policies of type CUSTOM or DEFAULT.")
    ] = "",
    yes: Yes = False,
    options: ClusterOptions,
) -> None:
    """Delete policies of a user; without --resource and --type all of them.

    Exit code 3: a process does not have the change yet.
    """
    if policy_type not in ("", "CUSTOM", "DEFAULT"):
        raise BadOption(f"--type {policy_type!r}: write CUSTOM or DEFAULT")
    name = _name(user)
    of = f" for {resource}" if resource else ""
    confirm(f"Delete the policies of user {name}{of}?", yes)
    with options.admin() as admin:
        change = admin.delete_policies(name, resource=resource, policy_type=policy_type)
    changes.show_access(f"deleted policies of user {name}{of}", change, {}, as_json=options.json)


@app.add("list", epilog="Example: aerobee acl list --json")
def list_policies(*, options: ListingOptions) -> None:
    """List the policies of all users."""
    table = options.listing(COLUMNS)
    with options.admin() as admin:
        found = admin.list_policies()
    table.show(_items(found), as_json=options.json, empty="no policies")


@app.add(epilog="Example: aerobee acl get billing --json")
def get(*, user: User_, options: ListingOptions) -> None:
    """List the policies of one user, in the order in which they decide."""
    table = options.listing(COLUMNS)
    with options.admin() as admin:
        found = admin.list_policies(_name(user))
    table.show(_items(found), as_json=options.json)


@app.add("test", epilog="Example: aerobee acl test billing Topic:orders Pub")
def check(
    *,
    user: User_,
    resource: Annotated[
        str, Argument(metavar="RESOURCE", help="One resource, such as Topic:orders.")
    ],
    action: Annotated[
        str, Argument(metavar="ACTION", help="Pub, Sub, Create, Update, Delete, Get or List.")
    ],
    source_ip: Annotated[
        str, Option(metavar="IP", help="The address of the client. Default: an unknown one.")
    ] = "",
    options: ClusterOptions,
) -> None:
    """Show whether a user may do something, and name the policy that decides."""
    with options.admin() as admin:
        found = admin.test_access(_name(user), resource, action, source_ip=source_ip)
    if options.json:
        [item] = output.items_of([found])
        output.show_one({**item, "reason": found.reason}, as_json=True)
    else:
        print(printable(f"{'allowed' if found.allowed else 'denied'}: {found.reason}"))


@app.add("import", epilog="Example: aerobee acl import plain_acl.yml --dry-run")
def import_file(
    *,
    file: Annotated[
        Path, Argument(metavar="FILE", help="A proxy's file of users, or plain_acl.yml of 4.x.")
    ],
    dry_run: DryRun = False,
    options: ClusterOptions,
) -> None:
    """Create or update the users and policies of a file. Others are kept.

    An existing user keeps its secret key if the file has the same or none. Exit code 3: the file
    contains something without an equivalent, which is named, or a process lacks a change.
    """

    found = read(file)
    lacking: dict[str, str] = {}
    with options.admin() as admin:
        known = {user.username for user in admin.list_users()}
        for user in found.users:
            if not user.secrets and user.name not in known:
                raise MqError(
                    Code.INVALID_PARAMETER,
                    f"user {user.name!r} does not exist, and {file} has no password for it: "
                    "create it with `aerobee user create`",
                )
        if not dry_run:
            for user in found.users:
                lacking |= _apply(admin, user, exists=user.name in known)
    Table(
        (
            Column("user", "username"),
            Column("result", "result"),
            Column("super", "super"),
            Column("enabled", "enabled"),
            Column("policies", "policies", text=True),
        )
    ).show(_imported(found.users, known, dry_run=dry_run), as_json=options.json, empty="no users")
    end(
        [
            *(f"not imported: {each}" for each in found.skipped),
            *(f"{process} lacks a change: {reason}" for process, reason in lacking.items()),
        ]
    )


@app.add(epilog="Example: aerobee acl export")
def export(*, options: NamesrvOptions) -> None:
    """Print users and policies as JSON, in the form of a proxy's file of users, without secrets."""
    from json import dumps

    with options.admin() as admin:
        users = output.items_of(admin.list_users())
        policies = {
            name: [_parsed(each) for each in found] for name, found in admin.list_policies().items()
        }
    print(dumps(exported(users, policies), indent=2))


def _apply(admin: AdminClient, user: User, *, exists: bool) -> Mapping[str, str]:
    """Create or update a user and its policies. Return the processes that lack a change."""
    secret = user.secrets[0].decode() if user.secrets else None
    if exists:
        lacking = dict(
            admin.update_user(
                user.name, secret=secret, super=user.super, enabled=user.enabled
            ).lacking
        )
    else:
        assert secret is not None, "checked before the first change"
        lacking = dict(
            admin.create_user(user.name, secret, super=user.super, enabled=user.enabled).lacking
        )
    if user.policies:
        put = [_described(each) for each in user.policies]
        lacking |= admin.update_policies(user.name, put, create=True).lacking
    return lacking


def _imported(users: Iterable[User], known: set[str], *, dry_run: bool) -> list[dict[str, Any]]:
    prefix = "would be " if dry_run else ""
    return [
        {
            "username": user.name,
            "result": prefix + ("updated" if user.name in known else "created"),
            "super": user.super,
            "enabled": user.enabled,
            "policies": tuple(map(str, user.policies)),
        }
        for user in users
    ]


def _described(policy: Policy) -> PolicyDescription:
    from aerobee_client.admin.descriptions import PolicyDescription

    return PolicyDescription(
        resource=policy.resource,
        actions=tuple(sorted(policy.actions)),
        decision=policy.decision,
        policy_type=policy.type,
        source_ips=tuple(map(str, policy.sources)),
    )


def _parsed(policy: PolicyDescription) -> Policy:
    from aerobee_wire.access.messages import policy_of

    return policy_of(policy.message())


def _items(policies: Mapping[str, Sequence[PolicyDescription]]) -> list[dict[str, Any]]:
    return [
        {"username": name, **item} for name, found in policies.items()
        for item in output.items_of(found)
    ]  # fmt: skip


def _warn_of_missing(admin: AdminClient, name: str) -> None:
    """Print a warning if there is no user `name`, whose policies may be created first."""
    try:
        admin.get_user(name)
    except MqError as error:  # the caller may have no right to ask
        if error.code is Code.QUERY_NOT_FOUND:
            output.note(f"warning: {error.message}")


def _name(user: str) -> str:
    return user.removeprefix(SUBJECT)


# ---- access files ----
#
# Read users and policies from files for `aerobee acl import`, and write them for `acl export`.
#
# Two formats are read: the proxy's file of users (JSON), and plain_acl.yml of RocketMQ 4.x. What
# has no equivalent is named, and is not imported.


# Permissions of plain_acl.yml. None denies.
_PERMISSIONS = {
    "DENY": None,
    "PUB": ("Pub",),
    "SUB": ("Sub",),
    "PUB|SUB": ("Pub", "Sub"),
    "SUB|PUB": ("Pub", "Sub"),
    "ANY": ("Pub", "Sub"),
}
_ACCOUNT_KEYS = frozenset(
    {
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
    }
)


@dataclass(slots=True)
class AccessFile:
    """The users of a file, and a sentence for each thing in it that has no equivalent."""

    users: list[User]
    skipped: list[str] = field(default_factory=list)


def read(path: Path) -> AccessFile:
    """Read a file of either format. Raises CommandError, without a secret in its text."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise CommandError(f"cannot read {path}: {reason}") from None
    try:
        if text.lstrip().startswith("{"):
            users = parse_users(text, str(path), needs_secrets=False)
            return AccessFile([_merged(user) for user in users.values()])
        return _plain_acl(_yaml(text, path), path)
    except MqError as error:
        raise CommandError(error.message) from None


def exported(
    users: Iterable[Mapping[str, Any]], policies: Mapping[str, Sequence[Policy]]
) -> dict[str, Any]:
    """Return users and policies as the object of a file of users, without secrets."""
    return {
        "users": [
            {
                "username": user["username"],
                "userType": "SUPER" if user["super"] else "NORMAL",
                "userStatus": "enable" if user["enabled"] else "disable",
                "policies": [each.to_json() for each in policies.get(user["username"], ())],
            }
            for user in users
        ]
    }


def _merged(user: User) -> User:
    """Join policies with the same resource, type, decision and sources, as the table keeps one."""
    joined: dict[object, Policy] = {}
    for each in user.policies:
        key = each.resource, each.type, each.decision
        known = joined.get(key)
        if known is None:
            joined[key] = each
        elif known.sources == each.sources:
            joined[key] = policy(
                each.resource,
                sorted(known.actions | each.actions),
                decision=each.decision,
                type_=each.type,
                source_ips=[str(source) for source in each.sources],
            )
        else:
            raise invalid_parameter(
                f"user {user.name!r} has two policies {each.decision} on {each.resource} with "
                "other sourceIps: a user has one with the same resource, type and decision"
            )
    return User(
        user.name, user.secrets, enabled=user.enabled, super=user.super,
        policies=tuple(joined.values()),
    )  # fmt: skip


def _yaml(text: str, path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)  # the text of the error may contain a secret
        at = f":{mark.line + 1}" if mark is not None else ""
        raise CommandError(f"{path}{at} is neither JSON nor YAML") from None


def _plain_acl(content: Any, path: Path) -> AccessFile:
    accounts = content.get("accounts") if isinstance(content, dict) else None
    if not isinstance(accounts, list):
        raise invalid_parameter(
            f'{path} is neither a file of users ({{"users": […]}}) nor a plain_acl.yml (accounts:)'
        )
    found = AccessFile([])
    if content.get("globalWhiteRemoteAddresses"):
        found.skipped.append(
            "globalWhiteRemoteAddresses: no address may call without a signature; sign the calls"
        )
    for key in sorted(set(content) - {"accounts", "globalWhiteRemoteAddresses", "dataVersion"}):
        found.skipped.append(f"{key}: unknown")
    for number, account in enumerate(accounts, 1):
        try:
            found.users.append(_account(account, found.skipped))
        except MqError as error:
            raise invalid_parameter(f"account {number} of {path}: {error.message}") from None
    return found


def _account(account: Any, skipped: list[str]) -> User:
    if not isinstance(account, dict):
        raise invalid_parameter("it is not a mapping")
    name, secret = str(account.get("accessKey", "")), str(account.get("secretKey", ""))
    check_name(name)
    if not secret:
        raise invalid_parameter(f"{name!r} has no secretKey")
    if account.get("whiteRemoteAddress"):
        skipped.append(
            f"whiteRemoteAddress of {name}: no address may call without a signature; to limit the "
            "user to it, add --source-ip to its policies"
        )
    for key in sorted(set(account) - _ACCOUNT_KEYS):
        skipped.append(f"{key} of {name}: unknown")
    if account.get("admin"):
        return User(name, (secret.encode(),), super=True)
    policies = [
        *_listed("Topic", account.get("topicPerms")),
        *_listed("Group", account.get("groupPerms")),
        *_default("Topic", account.get("defaultTopicPerm")),
        *_default("Group", account.get("defaultGroupPerm")),
    ]
    return _merged(User(name, (secret.encode(),), policies=tuple(policies)))


def _listed(kind: str, entries: Any) -> Iterator[Policy]:
    for entry in entries or ():
        name, _, permission = str(entry).partition("=")
        name = name.strip()
        if kind == "Group":
            name = group_of(name) or name
        actions = _actions(permission, str(entry))
        decision = "DENY" if actions is None else "ALLOW"
        yield policy(f"{kind}:{name}", actions or ["All"], decision=decision)


def _default(kind: str, permission: Any) -> Iterator[Policy]:
    if permission and (actions := _actions(str(permission), str(permission))):
        yield policy(f"{kind}:*", actions, type_="DEFAULT")


def _actions(permission: str, entry: str) -> tuple[str, ...] | None:
    wanted = permission.strip().upper()
    if wanted not in _PERMISSIONS:
        known = ", ".join(_PERMISSIONS)
        raise invalid_parameter(f"{entry[:64]!r} has an unknown permission: {known} are known")
    return _PERMISSIONS[wanted]
