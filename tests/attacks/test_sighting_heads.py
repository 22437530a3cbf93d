"""H6: a log that another owner shows as its sighting must continue what was seen of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sealift.errors import SealiftError
from sealift.release.client import request_sighting
from sealift.release.log.heads import HeadStore
from tests.sim.owners import make_broker, session_pair
from tests.sim.paperwork import release_once
from tests.worlds.consortium import Consortium, make_consortium


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return make_consortium()


def see(
    consortium: Consortium, folder: Path, heads: HeadStore | None, releases: int
) -> str:
    """Ask ada's broker of this folder, after so many releases; why not, or empty."""
    folder.mkdir(exist_ok=True)
    box = make_broker(consortium, "ada", folder)
    try:
        for _ in range(releases):
            release_once(consortium, box, "ada")
        session = session_pair(consortium, box.broker, "ada")
        request_sighting(session, "ada", consortium.verified(), heads=heads)
    except SealiftError as error:
        return error.code
    finally:
        box.close()
    return ""


def test_the_head_is_kept(consortium: Consortium, tmp_path: Path) -> None:
    heads = HeadStore(tmp_path / "heads.json")
    assert see(consortium, tmp_path / "a", heads, 0) == ""
    log = consortium.identities["ada"].public_key
    kept = HeadStore(tmp_path / "heads.json").last(log)
    assert kept is not None
    assert kept.body.size == 1


def test_a_second_log_of_the_same_owner(consortium: Consortium, tmp_path: Path) -> None:
    """Written anew, with as many entries or more: another past."""
    heads = HeadStore(tmp_path / "heads.json")
    assert see(consortium, tmp_path / "a", heads, 2) == ""
    assert see(consortium, tmp_path / "b", heads, 2) == "log-forked"
    assert see(consortium, tmp_path / "d", heads, 3) == "log-forked"
    assert see(consortium, tmp_path / "c", None, 2) == ""  # mutant: nobody remembers


def test_it_may_grow(consortium: Consortium, tmp_path: Path) -> None:
    """Control: a later head of the same log, shown with its proof."""
    heads = HeadStore(tmp_path / "heads.json")
    box = make_broker(consortium, "ada", tmp_path)
    for _ in range(2):
        release_once(consortium, box, "ada")
        session = session_pair(consortium, box.broker, "ada")
        request_sighting(session, "ada", consortium.verified(), heads=heads)
    box.close()
    kept = heads.last(consortium.identities["ada"].public_key)
    assert kept is not None
    assert kept.body.size == 3
