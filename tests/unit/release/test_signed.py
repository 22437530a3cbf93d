"""Signed agreements on disk, and lines of successors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sealift.errors import (
    MalformedError,
    PolicyError,
    StaleError,
    UnavailableError,
)
from sealift.release.agreement.signed import (
    MAX_AGREEMENT_BYTES,
    load_signed,
    save_signed,
    verify,
    verify_signatures,
)
from sealift.release.agreement.successors import require_follows
from tests.worlds.consortium import Consortium, make_consortium


@pytest.fixture(scope="module")
def consortium() -> Consortium:
    return make_consortium()


def test_survives_the_disk(consortium: Consortium, tmp_path: Path) -> None:
    save_signed(consortium.signed(), tmp_path / "a.json")
    loaded = load_signed(tmp_path / "a.json")
    verified = verify(loaded)
    assert verified.digest == consortium.agreement.digest
    assert verified.party("ada").name == "ada"
    assert verified.resource("ada-train").owner == "ada"
    assert verified.accept == consortium.agreement.accept


def test_missing_in_the_order_of_parties(consortium: Consortium) -> None:
    signed = consortium.signed("bern")
    assert signed.missing == ("ada", "cleo")
    assert verify_signatures(signed) is signed
    with pytest.raises(PolicyError, match="ada, cleo") as caught:
        verify(signed)
    assert caught.value.code == "agreement-unsigned"


def test_a_stranger_cannot_sign(consortium: Consortium) -> None:
    signed = consortium.signed()
    strange = replace(signed, signatures={**signed.signatures, "zoe": bytes(64)})
    with pytest.raises(MalformedError, match="zoe"):
        verify(strange)


def test_successors(consortium: Consortium) -> None:
    after = consortium.successor()
    require_follows(after.verified().agreement, consortium.agreement)
    for wrong in (
        consortium,
        after.successor(),
        replace(after, agreement=replace(after.agreement, name="other")),
        replace(
            after,
            agreement=replace(after.agreement, predecessor=after.agreement.digest),
        ),
    ):
        with pytest.raises(StaleError) as caught:
            require_follows(wrong.verified().agreement, consortium.agreement)
        assert caught.value.code == "agreement-line"


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        load_signed(tmp_path / "nowhere.json")
    (tmp_path / "x.json").write_text('{"agreement": {}}')
    with pytest.raises(MalformedError) as caught:
        load_signed(tmp_path / "x.json")
    assert caught.value.code == "bad-agreement-file"
    (tmp_path / "x.json").write_bytes(b"0" * (MAX_AGREEMENT_BYTES + 1))
    with pytest.raises(MalformedError) as caught:
        load_signed(tmp_path / "x.json")
    assert caught.value.code == "too-large"
