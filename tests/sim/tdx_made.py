"""Evidence of a made Intel, examined: one good case, and everything replaceable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sealift.attest import Claims, ReferenceValues
from sealift.attest.collateral import Collateral
from sealift.attest.reference import AppraisalBasis
from sealift.attest.runtimelog import RuntimeEvent
from sealift.attest.tdx.evidence import TdxBody
from sealift.errors import EvidenceError
from tests.sim.intel_world import IntelWorld
from tests.sim.made_chain import AT_S

BOUND = bytes(range(32))
REPORT_DATA = BOUND + bytes(32)
WORLD = IntelWorld()
GOOD = WORLD.collateral()
QUOTE = WORLD.quote(REPORT_DATA)


def examine(
    world: IntelWorld = WORLD,
    *,
    quote: bytes | None = None,
    references: ReferenceValues | None = None,
    collateral: Collateral | None = None,
    at_s: int = AT_S,
    bound: bytes | None = BOUND,
    events: tuple[RuntimeEvent, ...] = (),
    ccel: bytes | None = None,
) -> Claims:
    quote = quote or (QUOTE if world is WORLD else world.quote(REPORT_DATA))
    return world.verifier().examine(
        TdxBody(quote=quote, events=events, ccel=ccel).to_evidence(),
        AppraisalBasis(
            bound=bound,
            references=references or WORLD.references(),
            collateral=collateral or (GOOD if world is WORLD else world.collateral()),
            at_s=at_s,
        ),
    )


def failed(claims: Claims) -> set[str]:
    return {each.code for each in claims.checks if not each.passed}


def refused(code: str, world: IntelWorld = WORLD, **kwargs: Any) -> None:
    with pytest.raises(EvidenceError) as caught:
        examine(world, **kwargs)
    assert caught.value.code == code


def changed(**changes: Any) -> IntelWorld:
    """A world whose guest differs."""
    world = IntelWorld()
    world.guest = replace(world.guest, **changes)
    return world


Change = Callable[[dict[str, Any]], object]
