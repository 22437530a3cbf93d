"""P1: no key without evidence that conforms; each single value is changed in turn.

Measurements of TDs, SEV-SNP guests and GPUs: ``tests/unit/attest/test_tdx.py``,
``test_snp.py`` and ``tests/vectors``, where each is changed likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from sealift.attest.policy import Appraiser
from sealift.attest.reference import ImaReferences, TpmReferences
from sealift.crypto.sign import SigningKey
from sealift.ids import Digest
from sealift.release.log.heads import read_entries
from tests.attacks.scenarios.world import PROGRAMS, BrokerWorld, Change

REGISTERS = tuple(map(str, range(10)))
PATHS = ("boot_aggregate", *(path for path, _ in PROGRAMS))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerWorld]:
    with BrokerWorld(tmp_path_factory.mktemp("o")) as broker:
        yield broker


def tpm(change: Callable[[TpmReferences], TpmReferences]) -> Change:
    def changed(ours: Appraiser) -> Appraiser:
        assert ours.references.tpm is not None
        values = replace(ours.references, tpm=change(ours.references.tpm))
        return replace(ours, references=values)

    return changed


def allowing(path: str, *digests: Digest) -> Change:
    def changed(values: TpmReferences) -> TpmReferences:
        assert values.ima is not None
        allow = {**values.ima.allow, path: digests}
        return replace(values, ima=ImaReferences(allow=allow))

    return tpm(changed)


def test_control_as_agreed_the_key_comes(broker: BrokerWorld) -> None:
    assert broker.ask() == ""


@pytest.mark.parametrize("register", REGISTERS)
def test_each_register(broker: BrokerWorld, register: str) -> None:
    flipped = (b"\x01" + bytes(31),)
    change = tpm(
        lambda values: replace(values, pcrs={**values.pcrs, register: flipped})
    )
    assert broker.ask(change=change) == "tpm-pcr"


@pytest.mark.parametrize("path", PATHS[1:])
def test_each_file(broker: BrokerWorld, path: str) -> None:
    assert (
        broker.ask(change=allowing(path, Digest.of(b"other"))) == "ima-entry-unlisted"
    )


def test_its_endorsement_key(broker: BrokerWorld) -> None:
    other = (Digest.of(b"another TPM"),)
    change = tpm(lambda values: replace(values, endorsement_keys=other))
    assert broker.ask(change=change) == "tpm-other-host"


def test_its_maker(broker: BrokerWorld) -> None:
    change = tpm(lambda values: replace(values, roots=()))
    assert broker.ask(change=change) == "chain-root"


def test_who_enrolled_it(broker: BrokerWorld) -> None:
    def change(ours: Appraiser) -> Appraiser:
        others = (SigningKey.generate().public_key,)
        return replace(ours, references=replace(ours.references, enrollers=others))

    assert broker.ask(change=change) not in ("", "tpm-pcr")


def test_its_code(broker: BrokerWorld) -> None:
    def change(ours: Appraiser) -> Appraiser:
        values = replace(ours.references, code_bundle=Digest.of(b"other code"))
        return replace(ours, references=values)

    assert broker.ask(change=change) == "code-bundle-differs"


def test_every_refusal_is_in_the_log(broker: BrokerWorld) -> None:
    broker.ask(change=tpm(lambda values: replace(values, endorsement_keys=())))
    *_, last = read_entries(broker.folder / "audit.db")
    assert (last.kind, last.rule) == ("refusal", "tpm-other-host")
