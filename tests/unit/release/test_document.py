"""TOML to agreement: what stands in it, and one clear error for what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sealift.attest.reference import NvidiaReferences
from sealift.codec import decode, encode
from sealift.errors import MalformedError, SealiftError, StaleError, UnavailableError
from sealift.ids import Digest
from sealift.release.agreement import (
    ROWS_LEASE,
    Agreement,
    Board,
    ReleaseRule,
    Resource,
    RollbackRule,
)
from sealift.release.agreement.document import compile_document
from sealift.release.agreement.signed import save_signed
from sealift.release.agreement.starter import Starter
from sealift.release.files import read_whole
from tests.sim.owners import NOW_S
from tests.worlds.consortium import CODE, Consortium, make_consortium

CONSORTIUM = make_consortium(("ada", "bern"), cell_rows=16)


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
    "about nothing": ('about = "train"', "", "about", "bad-agreement"),
    "about anything": ('"train"  ', '"all"', "about", "bad-agreement"),
    "about models": (
        'about = "train"',
        'about = "serve"',
        "model_owner",
        "bad-agreement",
    ),
    "without [output]": (
        "[output]",
        "[references.tpm]",
        "references.tpm",
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


def change(document: Path, old: str, new: str) -> Agreement:
    text = document.read_text()
    assert old in text
    document.write_text(text.replace(old, new, 1))
    return compile_document(document, read_resource).agreement


END = "not_after = "


def written_end(document: Path) -> str:
    lines = document.read_text().splitlines()
    return next(line.split("   ")[0] for line in lines if line.startswith(END))


@pytest.mark.parametrize(
    "time",
    [
        '"2027-01-31T12:00:00Z"',
        '"2027-01-31T13:00:00+01:00"',
        "2027-01-31T12:00:00Z",
        "2027-01-31 12:00:00Z",
    ],
)
def test_times_are_seconds_in_what_is_signed(document: Path, time: str) -> None:
    before = written_end(document)
    assert change(document, before, f"{END}{time}").not_after == 1_801_396_800


@pytest.mark.parametrize(
    "time",
    ['"2027-01-31"', '"2027-01-31T12:00:00"', '"soon"', "2027-01-31", "1801396800",
     '"2027-01-31T12:00:00.5Z"', "true", '"2027-W04-7"', '""'],
)  # fmt: skip
def test_times_that_are_none(document: Path, time: str) -> None:
    before = written_end(document)
    with pytest.raises(MalformedError) as caught:
        change(document, before, f"{END}{time}")
    assert caught.value.field == "not_after"


def test_the_starter_leaves_little_open(document: Path) -> None:
    agreement = compile_document(document, read_resource).agreement
    assert agreement.not_after == int(NOW_S) + 90 * 86_400
    for resource in agreement.resources:
        assert resource.rule == ReleaseRule(
            max_uses=40, not_after=agreement.not_after, lease_s=60.0, heartbeat_s=10.0
        )
        assert resource.lease == ROWS_LEASE
    assert (agreement.output.min_rows, agreement.output.min_owner_rows) == (30, 15)


def test_a_rule_in_the_document_takes_the_place_of_the_cards(document: Path) -> None:
    owned = replace(CONSORTIUM.agreement.resources[0], rule=ReleaseRule(max_uses=3))
    (document.parent / f"{owned.name}.json").write_bytes(encode(owned))
    agreement = compile_document(document, read_resource).agreement
    assert agreement.resources[0].rule.max_uses == 40
    text = document.read_text()
    begin = text.index("[resources.rule]")
    end = text.index("\n\n", begin)
    document.write_text(text[:begin] + text[end:])
    agreement = compile_document(document, read_resource).agreement
    assert agreement.resources[0].rule == ReleaseRule(max_uses=3)


def test_boards_and_references(document: Path) -> None:
    """Tables of their own, of which fields with a default may be left out."""
    text = document.read_text()
    text += (
        '[board]\nmembers = ["ada", "bern"]\nthreshold = 2\n'
        "rollback = { quorum = 2, faulty = 0 }\n"
    )
    text = text.replace("[references]\n", f"[references]\nsets = [{SET}]\n")
    document.write_text(text)
    agreement = compile_document(document, read_resource).agreement
    assert agreement.board == Board(
        members=("ada", "bern"), threshold=2, rollback=RollbackRule(2, 0)
    )
    assert agreement.references.sets[0].name == "hosts"
    assert agreement.references.tpm is None


SET = f'{{ name = "hosts", signer = "{CONSORTIUM.attester.public_key}", number = 3 }}'


def test_references_by_kind_with_their_defaults(document: Path) -> None:
    text = (
        document.read_text()
        + """
[references.nvidia]
drivers = ["580.1"]
vbios = ["96.00"]
[references.tpm]
roots = [{ name = "vendor", key = "KEY", operator = "hardware" }]
endorsement_keys = []
pcrs = { 0 = ["AAAA"] }
[references.tpm.ima]
allow = { "/usr/bin/python3" = ["KEY"] }
""".replace("KEY", str(Digest.of(b"x")))
    )
    document.write_text(text)
    references = compile_document(document, read_resource).agreement.references
    assert references.nvidia == NvidiaReferences(drivers=("580.1",), vbios=("96.00",))
    assert references.tpm is not None
    assert references.tpm.pcrs == {"0": (bytes(3),)}
    assert references.tpm.ima is not None
    assert references.tpm.ima.max_lag == 1000
    with pytest.raises(MalformedError) as caught:
        change(document, 'drivers = ["580.1"]', 'driver = ["580.1"]')
    assert caught.value.field == "references.nvidia.driver"


def test_a_board_of_the_starter(document: Path) -> None:
    text = replace(starter(), threshold=2, veto=["ada"]).to_toml()
    document.write_text(text)
    board = compile_document(document, read_resource).agreement.board
    assert board == Board(members=("ada", "bern"), threshold=2, veto=("ada",))


def test_a_successor_carries_what_was_signed_before(document: Path) -> None:
    first = CONSORTIUM.signed()
    save_signed(first, document.parent / "first.json")
    name = first.agreement.name
    text = replace(starter(), name=name, number=2, predecessor="first.json").to_toml()
    document.write_text(text)
    second = compile_document(document, read_resource)
    assert second.before == first.line
    assert second.agreement.predecessor == first.agreement.digest
    with pytest.raises(StaleError) as caught:
        change(document, "number = 2", "number = 3")
    assert caught.value.code == "agreement-line"


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
    text = replace(starter(), bundle='a"b\\c').to_toml()
    assert r'bundle = "a\"b\\c"' in text
