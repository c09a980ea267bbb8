"""The version of Aerobee. No other file states it; every distribution reads it from here."""

from __future__ import annotations

VERSION = "0.1.0"
