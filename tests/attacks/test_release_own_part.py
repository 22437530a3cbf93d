"""H7, value by value: nothing in an owner's part can be changed by all the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sealift.codec import from_plain, to_plain
from sealift.crypto.identity import create_identity
from sealift.crypto.sign import SigningKey
from sealift.errors import SealiftError
from sealift.ids import Digest
from sealift.release.agreement import Agreement, Board
from sealift.release.agreement.signed import verify
from tests.worlds.consortium import make_consortium

BOARD = Board(members=("ada", "bern", "cleo"), threshold=2)


def leaves(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Path of every value that holds no other."""
    if isinstance(plain, (dict, list)) and plain:
        pairs = plain.items() if isinstance(plain, dict) else enumerate(plain)
        for key, item in pairs:
            yield from leaves(item, (*path, key))
    else:
        yield path


def others(value: Any) -> Iterator[Any]:
    """Values of the same kind, and of those that may stand in the same place."""
    if isinstance(value, bool) or value is None:
        yield from (True, False, None, 7, 7.5)
    elif isinstance(value, (int, float)):
        yield from (value + 1, 16 * (value + 1), value / 2)
    elif isinstance(value, str):
        yield from (Digest.of(value.encode()).to_text(), "cleo", "heldout", "train")
        yield SigningKey.generate().public_key.to_text()
        yield create_identity("ada").card.hpke.to_text()
    else:
        yield from (["train"], ["code_owner"], ["development"], {"fields": []})


def placed(plain: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = json.loads(json.dumps(plain))
    target = changed
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    return changed


def test_no_value_of_an_owners_part_is_anybody_elses() -> None:
    """Every value in ada's entry and resources, changed in every way that parses."""
    first = make_consortium()
    consortium = replace(first, agreement=replace(first.agreement, board=BOARD))
    after = consortium.successor()
    plain = to_plain(after.agreement)
    own = [("parties", 0), ("resources", 0), ("resources", 1)]
    paths = [
        (*place, *path) for place in own for path in leaves(plain[place[0]][place[1]])
    ]
    tried = set()
    for path in paths:
        before = plain
        for key in path:
            before = before[key]
        for value in others(before):
            if value == before and type(value) is type(before):
                continue
            try:
                agreement = from_plain(Agreement, placed(plain, path, value))
            except SealiftError:
                continue  # not an agreement at all
            changed = replace(after, agreement=agreement)
            with pytest.raises(SealiftError) as caught:
                verify(changed.signed("bern", "cleo"))
            assert caught.value.code in {"owner-part-changed", "party-removed"}, path
            tried.add(path)
    assert len(tried) > 25
    assert ("resources", 0, "rule", "max_uses") in tried
