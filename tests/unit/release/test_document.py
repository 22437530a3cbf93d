"""TOML to agreement: what stands in it, and one clear error for what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sealift.codec import decode, encode
from sealift.errors import MalformedError, SealiftError, UnavailableError
from sealift.release.agreement import Resource
from sealift.release.document import compile_document
from sealift.release.files import read_whole
from sealift.release.starter import Starter
from tests.sim.owners import CODE, NOW_S, Consortium, make_consortium

CONSORTIUM = make_consortium(("ada", "bern"))


def read_resource(path: Path) -> Resource:
    return decode(Resource, read_whole(path, 1 << 20))


def starter(consortium: Consortium = CONSORTIUM) -> Starter:
    return Starter(
        name="joint",
        party_cards=[(f"{name}.card.json", name) for name in consortium.identities],
        resource_cards=[
            (f"{entry.name}.json", entry.owner)
            for entry in consortium.agreement.resources
        ],
        bundle="code",
        entry="recipe.py",
        model_owner="bern",
        operator="bern",
        attesters=[consortium.attester.public_key],
        now_s=NOW_S,
        train_rows={"ada": 40, "bern": 30},
    )


@pytest.fixture
def document(tmp_path: Path) -> Path:
    for name, identity in CONSORTIUM.identities.items():
        (tmp_path / f"{name}.card.json").write_bytes(encode(identity.card))
    for entry in CONSORTIUM.agreement.resources:
        (tmp_path / f"{entry.name}.json").write_bytes(encode(entry))
    for name, content in CODE.items():
        path = tmp_path / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    path = tmp_path / "agreement.toml"
    path.write_text(starter().to_toml())
    return path


def test_the_starter_is_an_agreement(document: Path) -> None:
    agreement = compile_document(document, read_resource).agreement
    pairs = zip(agreement.resources, CONSORTIUM.agreement.resources, strict=True)
    assert all(ours.is_table_of(theirs) for ours, theirs in pairs)
    assert agreement.code == CONSORTIUM.agreement.code
    assert [party.sign for party in agreement.parties] == [
        party.sign for party in CONSORTIUM.agreement.parties
    ]
    assert agreement.party("ada").roles == ("data_owner",)
    assert (
        compile_document(document, read_resource).agreement.digest == agreement.digest
    )


def test_comments_and_order_do_not_count(document: Path) -> None:
    before = compile_document(document, read_resource).agreement.digest
    lines = [line.split("  #")[0] for line in document.read_text().splitlines()]
    document.write_text("\n".join(line for line in lines if not line.startswith("#")))
    assert compile_document(document, read_resource).agreement.digest == before


CHANGES: dict[str, tuple[str, str, str, str]] = {
    "unknown at the top": ('name = "joint"', 'nam = "joint"', "nam", "bad-agreement"),
    "unknown in a table": ("digits = 3", "digit = 3", "output.digit", "bad-agreement"),
    "unknown in a list": (
        'card = "ada.card.json"',
        'card = "ada.card.json"\ncolour = 1',
        "parties[0].colour",
        "bad-agreement",
    ),
    "missing": ("min_rows = 30", "", "output.min_rows", "bad-agreement"),
    "wrong type": ("digits = 3", "digits = true", "output.digits", "bad-agreement"),
    "a date": ("digits = 3", "digits = 2026-01-01", "output.digits", "bad-agreement"),
    "unknown word": (
        'audience = "everyone"',
        'audience = "press"',
        "output.audience",
        "bad-agreement",
    ),
    "unknown role": (
        'roles = ["data_owner"]',
        'roles = ["king"]',
        "parties[0].roles[0]",
        "bad-agreement",
    ),
    "unknown level": ('["development"]', '["high"]', "accept[0]", "bad-agreement"),
    "not a key": ("ed25519:", "rsa:", "references.", "bad-agreement"),
    "infinite": ("lease_s = 120.0", "lease_s = inf", "lease_s", "bad-agreement"),
    "nan": ("lease_s = 120.0", "lease_s = nan", "lease_s", "bad-agreement"),
    "not TOML": ("number = 1", "number =", "", "bad-toml"),
    "not a card": ("ada.card.json", "ada-train.json", "", "bad-card"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_errors_name_their_place(
    document: Path, change: tuple[str, str, str, str]
) -> None:
    old, new, field, code = change
    text = document.read_text()
    assert old in text
    document.write_text(text.replace(old, new, 1))
    with pytest.raises(MalformedError) as caught:
        compile_document(document, read_resource)
    assert field in caught.value.field
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


GONE: dict[str, Callable[[Path], None]] = {
    "document": lambda folder: (folder / "agreement.toml").unlink(),
    "card": lambda folder: (folder / "ada.card.json").unlink(),
    "resource": lambda folder: (folder / "ada-train.json").unlink(),
    "code": lambda folder: (folder / "code").rename(folder / "elsewhere"),
}


@pytest.mark.parametrize("remove", GONE.values(), ids=GONE.keys())
def test_missing_files(document: Path, remove: Callable[[Path], None]) -> None:
    remove(document.parent)
    with pytest.raises(UnavailableError, match="cannot read"):
        compile_document(document, read_resource)


@pytest.mark.parametrize(
    "raw",
    [b"\xff\xfe", b"[" * 5000, b"a" * ((1 << 20) + 1), b"number = " + b"1" * 5000],
)
def test_hostile_bytes(document: Path, raw: bytes) -> None:
    document.write_bytes(raw)
    with pytest.raises(SealiftError) as caught:
        compile_document(document, read_resource)
    assert caught.value.exit_code == 6


def test_paths_are_quoted() -> None:
    from dataclasses import replace

    text = replace(starter(), bundle='a"b\\c').to_toml()
    assert r'bundle = "a\"b\\c"' in text
