"""Attacks on what keys are released by: P1 and P2 proofs, P5 loss, P6 and P7 levels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from sealift.attest.attester import Attester
from sealift.attest.development.attester import DevelopmentAttester
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.attest.reference import ReferenceValues
from sealift.attest.tpm.evidence import KIND, MEDIA_TYPE, TpmBody, parse_body
from sealift.attest.tpm.references import TpmReferences
from sealift.codec import encode
from sealift.crypto.sign import SigningKey
from sealift.errors import SealiftError
from sealift.ids import Role
from sealift.lab.attacks.stage import Stage
from sealift.release.lease import prove_lease

WATCHER: Final = "/usr/bin/watcher"
UNLISTED: Final = "/tmp/miner"  # noqa: S108 - a path in a list


@dataclass(frozen=True)
class SpoilingAttester:
    """Shows the host's evidence after it was changed."""

    host: Attester
    spoil: Callable[[TpmBody], TpmBody]
    media_type: str = MEDIA_TYPE

    def collect(self, bound: bytes) -> Evidence:
        """The host's, spoilt."""
        body = self.spoil(parse_body(self.host.collect(bound).body))
        return Evidence(KIND, MEDIA_TYPE, encode(body))


@dataclass(frozen=True)
class RepeatingAttester:
    """Shows evidence of an earlier session."""

    earlier: Evidence
    media_type: str = MEDIA_TYPE

    def collect(self, bound: bytes) -> Evidence:
        """What was collected then."""
        return self.earlier


def honest(stage: Stage) -> bool:
    """The agreed host, as it is, gets the key."""
    return not stage.office.ask()


def other_boot(stage: Stage) -> str:
    """(P1) The host booted something else than was agreed."""
    return stage.office.ask(change=_tpm(_other_kernel))


def other_program(stage: Stage) -> str:
    """(P1) The host ran a program that nobody agreed to."""
    return stage.office.ask(change=_tpm(_without_last_program))


def measures_too_little(stage: Stage) -> str:
    """(N8) Nothing on the list is forbidden, and what should watch the host never ran."""
    return stage.office.ask(change=_tpm(_with_a_must))


def other_host(stage: Stage) -> str:
    """(P1) A clean machine elsewhere answers: its endorsement key is not pinned."""
    return stage.office.ask(change=_tpm(lambda tpm: replace(tpm, endorsement_keys=())))


def dropped_entry(stage: Stage) -> str:
    """(P2) The list hides its last entry."""
    return _spoilt(stage, lambda entries: entries[:-1])


def swapped_entries(stage: Stage) -> str:
    """(P2) The list tells another order."""
    return _spoilt(stage, lambda entries: (entries[0], *reversed(entries[1:])))


def stale_quote(stage: Stage) -> str:
    """(P2) A quote of before."""
    earlier = stage.office.host.attester.collect(bytes(32))
    return stage.office.ask(RepeatingAttester(earlier))


def falls_later(stage: Stage) -> str:
    """(P5) Runs an unlisted program after its key was released."""
    office = stage.office
    with office.session(office.endpoint(office.host.attester)) as session:
        office.collect(session)
        office.host.kernel.run(UNLISTED, b"what nobody agreed to", allow=False)
        with suppress(SealiftError):
            prove_lease(session)
    stage.renew_office()
    return office.refused


def goes_on(stage: Stage) -> bool:
    """(P5) An honest host renews its lease while it runs what is listed."""
    office = stage.office
    with office.session(office.endpoint(office.host.attester)) as session:
        office.collect(session)
        office.host.kernel.run("/usr/bin/agent", b"agent", allow=False)
        return prove_lease(session).good


def weaker_evidence(stage: Stage) -> str:
    """(P6) Development evidence where an attested host is rehearsed."""
    return stage.office.ask(_development(stage), _with_attester)


def accepted_weaker(stage: Stage) -> bool:
    """(P6) The same evidence where the agreement rehearses nothing."""
    return not stage.office.ask(
        _development(stage), lambda ours: replace(_with_attester(ours), rehearse=None)
    )


def software_as_hardware(stage: Stage) -> str:
    """(P7) A software TPM, and an agreement that wants a real attested host."""
    return stage.office.ask(
        change=lambda ours: replace(ours, accept=(Level.ATTESTED_HOST,), rehearse=None)
    )


def software_called_chip(stage: Stage) -> str:
    """(P7) The same, with the software TPM's maker called a vendor of chips."""

    def change(ours: Appraiser) -> Appraiser:
        named = _tpm(_as_hardware)(ours)
        return replace(named, accept=(Level.ATTESTED_HOST,), rehearse=None)

    return stage.office.ask(change=change)


def _spoilt(
    stage: Stage, change: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
) -> str:
    def spoil(body: TpmBody) -> TpmBody:
        return replace(body, ima_list=b"".join(change(entries_of(body.ima_list))))

    return stage.office.ask(SpoilingAttester(stage.office.host.attester, spoil))


def entries_of(raw: bytes) -> tuple[bytes, ...]:
    """The bytes of each entry of a binary list."""
    found, place = [], 0
    while place < len(raw):
        name = int.from_bytes(raw[place + 24 : place + 28], "little")
        content = place + 28 + name
        end = content + 4 + int.from_bytes(raw[content : content + 4], "little")
        found.append(raw[place:end])
        place = end
    return tuple(found)


def _tpm(
    change: Callable[[TpmReferences], TpmReferences],
) -> Callable[[Appraiser], Appraiser]:
    def changed(ours: Appraiser) -> Appraiser:
        values: ReferenceValues = ours.references
        assert values.tpm is not None
        return replace(ours, references=replace(values, tpm=change(values.tpm)))

    return changed


def _other_kernel(tpm: TpmReferences) -> TpmReferences:
    return replace(tpm, pcrs={**tpm.pcrs, "4": (bytes(31) + b"\x01",)})


def _without_last_program(tpm: TpmReferences) -> TpmReferences:
    assert tpm.ima is not None
    *kept, _ = tpm.ima.allow.items()
    return replace(tpm, ima=replace(tpm.ima, allow=dict(kept)))


def _with_a_must(tpm: TpmReferences) -> TpmReferences:
    assert tpm.ima is not None
    return replace(tpm, ima=replace(tpm.ima, must=(*tpm.ima.must, WATCHER)))


def _as_hardware(tpm: TpmReferences) -> TpmReferences:
    roots = tuple(replace(root, operator="hardware") for root in tpm.roots)
    return replace(tpm, roots=roots)


_STAND_IN: Final = SigningKey.generate()


def _development(stage: Stage) -> DevelopmentAttester:
    bundle = stage.office.agreement.agreement.code.digest
    return DevelopmentAttester(_STAND_IN, role=Role.ACCELERATOR, code_bundle=bundle)


def _with_attester(ours: Appraiser) -> Appraiser:
    keys = (_STAND_IN.public_key,)
    values = replace(ours.references, development_attesters=keys)
    return replace(ours, references=values)
