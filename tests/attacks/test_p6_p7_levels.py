"""P6: the level never drops silently. P7: what is played is never taken for real.

A GPU's evidence missing, and CPU evidence that stays a host's:
``tests/unit/attest/test_composite.py``; a manifest that claims a better level:
``tests/unit/train/test_manifest.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from sealift.attest import collateral as anchors
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.ids import Digest
from sealift.release.log.heads import read_entries
from tests.attacks.scenarios import evidence
from tests.attacks.scenarios.world import AttackWorld, Change

REAL = (Level.TEE, Level.GPU_TEE, Level.ATTESTED_HOST)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackWorld]:
    world = AttackWorld(tmp_path_factory.mktemp("s"))
    yield world
    world.close()


def accepting(*levels: Level) -> Change:
    def change(ours: Appraiser) -> Appraiser:
        return replace(ours, accept=levels, rehearse=None)

    return change


def test_control_it_rehearses_and_every_paper_says_so(world: AttackWorld) -> None:
    assert evidence.agreed_host(world)
    *_, last = read_entries(world.broker.folder / "audit.db")
    assert last.kind == "release"
    assert "development" in last.level
    assert "attested-host" in last.level


@pytest.mark.parametrize("level", REAL, ids=str)
def test_a_real_level_alone(world: AttackWorld, level: Level) -> None:
    refused = world.broker.ask(change=accepting(level))
    assert refused in {"level-refused", "development-refused"}


def test_all_real_levels_together(world: AttackWorld) -> None:
    assert world.broker.ask(change=accepting(*REAL)) == "development-refused"


def test_no_operators_word_makes_a_software_tpm_real(world: AttackWorld) -> None:
    assert evidence.software_called_chip(world) == "development-refused"


def test_weaker_evidence_where_more_is_rehearsed(world: AttackWorld) -> None:
    assert evidence.weaker_evidence(world) == "rehearsal-differs"
    assert evidence.accepted_weaker(world)


def test_our_makers_are_nobodys_vendors(world: AttackWorld) -> None:
    """No root of a software TPM is among the vendors' that are built in."""
    known = {
        digest
        for name in dir(anchors)
        if name.isupper() and isinstance(found := getattr(anchors, name), dict)
        for digest in found.values()
    }
    assert all(isinstance(digest, Digest) for digest in known)
    assert len(known) >= 4
    assert world.broker.host.maker.root.spki_digest not in known
