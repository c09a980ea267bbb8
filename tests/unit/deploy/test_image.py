"""deploy/image.py: the base of the images is named by its digest."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from support.repository.tree import ROOT, script

image = script(ROOT / "deploy" / "image.py")

INDEX = "sha256:" + "1" * 64
PULLED = "sha256:" + "2" * 64


def answer(monkeypatch: pytest.MonkeyPatch, answers: Mapping[str, str | None]) -> None:
    """What the engine's commands print, by their first words."""

    def output(*command: str) -> str | None:
        line = " ".join(command)
        return next((text for words, text in answers.items() if line.startswith(words)), None)

    monkeypatch.setattr(image, "output", output)


@pytest.mark.parametrize(
    ("registry", "pulled", "base"),
    [
        (INDEX, json.dumps([f"python@{PULLED}"]), f"{image.BASE}@{INDEX}"),
        (None, json.dumps([f"python@{PULLED}"]), f"{image.BASE}@{PULLED}"),
        (None, "[]", None),  # built here
        (None, None, None),  # neither pulled nor built
    ],
)
def test_the_digest_is_that_of_the_registry_or_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, registry: str | None, pulled: str | None, base: str | None
) -> None:
    answers = {"docker buildx imagetools": registry, "docker image inspect": pulled}
    answer(monkeypatch, answers)
    assert image.pinned_base() == base


def test_the_build_gets_the_base_with_its_digest() -> None:
    found = dict.fromkeys(("AEROBEE_VERSION", "AEROBEE_COMMIT", "AEROBEE_PREFIX"), "x")
    command = image.build("aerobee", {**found, "AEROBEE_BASE": f"{image.BASE}@{INDEX}"})
    assert f"--build-arg=BASE={image.BASE}@{INDEX}" in command


def test_a_release_refuses_a_base_without_a_digest(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, {"docker version": "linux/amd64"})
    assert image.main(["--pinned"]) == 1
    assert image.BASE in capsys.readouterr().err
