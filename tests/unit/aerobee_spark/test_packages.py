"""Test the error that names the packages that a Python lacks."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from aerobee_spark import packages
from aerobee_spark.errors import MissingPackageError


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    packages.check_packages.cache_clear()
    yield
    packages.check_packages.cache_clear()


def test_this_one_lacks_nothing() -> None:
    packages.check_packages()


def test_each_package_that_is_missing_is_named_and_where(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {**packages.NEEDED, "no_such_module": "some-package", "nothing.at_all": "other"}
    monkeypatch.setattr(packages, "NEEDED", needed)
    with pytest.raises(MissingPackageError) as caught:
        packages.check_packages()
    assert caught.value.about == "some-package and other"
    assert sys.executable in caught.value.message and "\n" not in caught.value.message
