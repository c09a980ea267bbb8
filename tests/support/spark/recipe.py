"""A program of docs/spark.md that lands the topic `orders` in a table, run as often as it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from aerobee_client import Message, Producer
from support.repository import reader
from support.repository.tree import ROOT
from support.spark import class_archive

TIMEOUT_S = 600.0
TOPIC = "orders"
COUNTED = """
places = table.select("brokerName", "queueId", "queueOffset")
print(json.dumps([places.count(), places.distinct().count()]))
"""


def send(namesrv: str, count: int) -> None:
    with Producer("tests", namesrv=namesrv) as producer:
        producer.send_batch([Message(TOPIC, b"%d" % number) for number in range(count)])


@dataclass(frozen=True)
class Recipe:
    """`table`: the folder that the program writes. `form`: how Spark reads it. `replaced`: texts of
    the program that are other ones here."""

    folder: Path
    namesrv: str
    table: str
    form: str
    replaced: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> tuple[int, int]:
        """Rows and different messages that the table has then."""
        read = f'table = spark.read.format("{self.form}").load("{self.table}")'
        done = subprocess.run(
            [sys.executable, "-c", f"import json\n{self._program()}\n{read}\n{COUNTED}"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            cwd=self.folder,
            env={
                **reader.environment(self.folder),
                class_archive.VARIABLE: class_archive.java_options(),
                **self.environment,
            },
        )
        assert done.returncode == 0, done.stderr
        rows, messages = json.loads(done.stdout.splitlines()[-1])
        return rows, messages

    def forget_last_commit(self) -> None:
        """As a kill between the output and the commit of a batch leaves the checkpoint."""
        commits = self.folder / f"{self.table}.checkpoint" / "commits"
        last = max(int(path.name) for path in commits.glob("[0-9]*"))
        for path in commits.glob(f"*{last}*"):
            path.unlink()

    def _program(self) -> str:
        blocks = (ROOT / "docs" / "spark.md").read_text("utf-8").split("```python\n")[1:]
        programs = (block.partition("```")[0] for block in blocks)
        [program] = [each for each in programs if f"{self.table}.checkpoint" in each]
        for text, other in {"127.0.0.1:9876": self.namesrv, **self.replaced}.items():
            assert text in program
            program = program.replace(text, other)
        return program
