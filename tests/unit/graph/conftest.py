"""torch traces what it exports in thousands of messages, and pytest would keep them all."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from sealift import recipes


@pytest.fixture(autouse=True)
def _quiet_and_without_assets() -> Iterator[None]:
    trace = logging.getLogger("torch.__trace")
    level = trace.level
    trace.setLevel(logging.CRITICAL)
    yield
    trace.setLevel(level)
    recipes.provide_assets({})
