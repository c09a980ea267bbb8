"""Of all tests that make their cases with Hypothesis: an example may take as long as it needs, on a
machine that is busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
