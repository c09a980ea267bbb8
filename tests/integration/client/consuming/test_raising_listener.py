"""A listener that raises, in a program that does not configure logging: what the program prints."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

from aerobee_client import Message, Producer

PROGRAM = """
import sys, threading
from aerobee_client import ConsumeFromWhere, PushConsumer

failed = threading.Event()
consumer = PushConsumer(
    "raising",
    lambda message: undefined_name,
    namesrv=sys.argv[1],
    consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    on_error=lambda failure: failed.set(),
)
consumer.subscribe("raising")
with consumer:
    assert failed.wait(30)
"""


def test_a_program_without_logging_prints_the_traceback(namesrv: str) -> None:
    with Producer(namesrv=namesrv) as producer:
        producer.send_batch([Message("raising", b"%d" % number) for number in range(20)])
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), namesrv],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ,
    )
    assert run.stderr.count("Traceback") == 1
    assert "NameError: name 'undefined_name' is not defined" in run.stderr
    assert "more messages failed with NameError" in run.stderr
