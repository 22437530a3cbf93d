"""Where a recipe failed: readable to the code's owner, and to nobody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sealift.attest.development import DevelopmentAttester
from sealift.codec import decode, encode
from sealift.crypto.sign import SigningKey
from sealift.errors import MalformedError, RefusedError
from sealift.ids import Role
from sealift.release.receipt import instance_bound
from sealift.train.loop.faults import Fault, explain
from sealift.train.output.sealing import (
    FaultNote,
    hidden_fault,
    open_fault,
    readers_of,
    seal_fault,
)
from tests.worlds.consortium import make_consortium

FAULT = Fault(kind="error", path="recipe.py", line=4711, type="ZeroDivisionError")


CONSORTIUM = make_consortium(("ada", "bern"))  # the last owner wrote the code
VERIFIED = CONSORTIUM.verified()
READER = CONSORTIUM.identities["bern"]


def note(role: Role = Role.ACCELERATOR) -> FaultNote:
    instance = SigningKey.generate()
    code = CONSORTIUM.agreement.code.digest
    attester = DevelopmentAttester(CONSORTIUM.attester, role=role, code_bundle=code)
    evidence = attester.collect(instance_bound(instance.public_key, VERIFIED.digest))
    (output,) = seal_fault(FAULT, VERIFIED, "job", instance=instance, evidence=evidence)
    assert (output.name, output.last) == ("fault.bern.json", True)
    return decode(FaultNote, output.part)


NOTE = note()


def opened(folder: Path, found: FaultNote, name: str = "bern") -> str:
    path = folder / "note.json"
    path.write_bytes(encode(found))
    return str(open_fault(path, CONSORTIUM.identities[name], VERIFIED).error)


def test_its_reader_hears_all_of_it(tmp_path: Path) -> None:
    assert opened(tmp_path, NOTE) == str(explain(FAULT))
    assert "recipe.py:4711 with ZeroDivisionError" in opened(tmp_path, NOTE)


def test_nobody_else_does(tmp_path: Path) -> None:
    raw = encode(NOTE)
    for secret in (b"recipe.py", b"4711", b"ZeroDivision"):
        assert secret in encode(FAULT)  # control
        assert secret not in raw
        assert secret.decode() not in str(hidden_fault(CONSORTIUM.agreement))
    with pytest.raises(RefusedError) as refusal:
        opened(tmp_path, NOTE, "ada")
    assert refusal.value.code == "other-key"
    with pytest.raises(RefusedError):  # nor whoever says that it is for him
        opened(tmp_path, replace(NOTE, info=replace(NOTE.info, owner="ada")), "ada")


CHANGED = {
    "of another job": replace(NOTE, info=replace(NOTE.info, job="other")),
    "of other words": replace(
        NOTE, wrapped=NOTE.wrapped[:-1] + bytes([NOTE.wrapped[-1] ^ 1])
    ),
    "of a key without evidence": replace(
        NOTE, info=replace(NOTE.info, instance=SigningKey.generate().public_key)
    ),
    "of whoever can seal, in an instance's name": replace(
        NOTE,
        wrapped=READER.card.hpke.seal(
            encode(NOTE.info), encode(replace(FAULT, line=1))
        ),
    ),
    "of another instance": replace(NOTE, evidence=note().evidence),
    "of a holder's attester": note(Role.HOLDER),
}


@pytest.mark.parametrize("case", CHANGED)
def test_what_no_accelerator_made(tmp_path: Path, case: str) -> None:
    with pytest.raises((RefusedError, MalformedError)):
        opened(tmp_path, CHANGED[case])


def test_another_agreement(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_bytes(encode(NOTE))
    another = CONSORTIUM.successor(name="joint-digits").verified()
    with pytest.raises(RefusedError) as refusal:
        open_fault(path, READER, another)
    assert refusal.value.code == "other-output"


def test_without_a_code_owner_it_is_the_models() -> None:
    parties = tuple(
        replace(each, roles=tuple(r for r in each.roles if r != "code_owner"))
        for each in CONSORTIUM.agreement.parties
    )
    plain = replace(CONSORTIUM.agreement, parties=parties, model_owner="bern")
    assert readers_of(plain) == readers_of(CONSORTIUM.agreement) == ("bern",)
    assert plain.output is not None
    others = replace(plain, output=replace(plain.output, model_to=("ada",)))
    assert readers_of(others) == ("bern",)
