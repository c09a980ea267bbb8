"""Define `aerobee export` and `aerobee apply`: topics and groups of a cluster as a file."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from aerobee_cli import changes, manifest, output, settings
from aerobee_cli.command_line import Argument, CommandGroup
from aerobee_cli.options import ClusterOptions, DryRun, NamesrvOptions, end
from aerobee_cli.output import unchanged
from aerobee_cli.settings import Arguments

HEAD = "# Topics and groups, written by aerobee export. Create or update them: aerobee apply FILE\n"
STDOUT = "-"

app = CommandGroup()


@app.add(epilog="Example: aerobee export cluster.yaml")
def export(
    *,
    file: Annotated[Path, Argument(metavar="FILE", help="YAML; - is stdout. It is replaced.")],
    options: NamesrvOptions,
) -> None:
    """Write all topics and consumer groups with their settings to a file for `aerobee apply`.

    Messages and offsets are not part of it, nor are topics and groups of the system. Exit code 3: a
    broker did not answer, and its topics and groups may be missing; or a topic or group has other
    settings on one of its brokers, and the file has those of the first.
    """
    import yaml

    with options.asking() as (admin, silent):
        topics = output.items_of(admin.list_topics(silent=silent))
        groups, differing_groups = manifest.groups_of(
            {
                name: output.items_of(found)
                for name, found in admin.groups_of_brokers(silent=[]).items()
            }
        )
    differing = [f"topic {name}" for name in manifest.differing_topics(topics)]
    differing += [f"group {name}" for name in differing_groups]
    content = {
        "topics": [manifest.topic_entry(each) for each in topics],
        "groups": [manifest.group_entry(each) for each in groups],
    }
    text = HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    if str(file) == STDOUT:
        sys.stdout.write(text)
    else:
        file.write_text(text, encoding="utf-8")
        counts = output.counted(len(topics), "topic"), output.counted(len(groups), "group")
        output.note(f"{' and '.join(counts)} in {file}")
    end(
        [
            *(f"topics and groups may be missing: {error}" for error in silent),
            *(
                f"{each} has other settings on one of its brokers: the file has those of the first"
                for each in differing
            ),
        ]
    )


@app.add(epilog="Example: aerobee apply cluster.yaml --dry-run")
def apply(
    *,
    file: Annotated[Path, Argument(metavar="FILE", help="As `aerobee export` writes it.")],
    dry_run: DryRun = False,
    options: ClusterOptions,
) -> None:
    """Create the topics and groups of a file, and change those with other settings.

    Brokers that lack a topic or group of the file get it. Topics and groups that are not in the
    file stay as they are, and so do settings that it does not name. Everything is checked before
    the first change. A second run changes nothing.

    Exit code 3: a broker is not reached. Repeat the command when it answers.
    """
    topics, groups = settings.file_entries(file, "topic"), settings.file_entries(file, "group")
    with options.asking() as (admin, silent):

        def of_topics(*, dry_run: bool) -> list[output.Item]:
            create = admin.create_topic
            return changes.update_all(
                topics, admin.update_topic, create=create, dry_run=dry_run, silent=silent
            )

        def of_groups(wanted: Mapping[str, Arguments], *, dry_run: bool) -> list[output.Item]:
            create = admin.create_group
            return changes.update_all(
                wanted, admin.update_group, create=create, dry_run=dry_run, silent=silent
            )

        planned = of_topics(dry_run=True)
        created = {each["name"] for each in planned if each["setting"] == "created"}
        # A broker refuses a group that is bound to a topic that does not exist yet.
        bound = {name for name, each in groups.items() if settings.parent_of(each) in created}
        checked = {name: each for name, each in groups.items() if name not in bound}
        planned += of_groups(checked, dry_run=True)
        if not dry_run:
            planned = of_topics(dry_run=False) + of_groups(groups, dry_run=False)
    changes.show_updated("name", planned, as_json=options.json)
    if dry_run and bound:
        names = ", ".join(sorted(bound))
        output.note(f"not checked, because their topics do not exist yet: {names}")
    end(unchanged(silent, dry_run=dry_run))
