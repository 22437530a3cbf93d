"""Attacks on what keys are released by: evidence (T5, P1, P2, N8), loss (P5), levels (P6, P7)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from sealift.attest.development import DevelopmentAttester
from sealift.attest.evidence import Attester, Evidence
from sealift.attest.level import Level
from sealift.attest.policy import Appraiser
from sealift.attest.reference import TpmReferences
from sealift.attest.tpm.evidence import TpmBody
from sealift.crypto.hash import labelled
from sealift.crypto.keys import Label
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import SealiftError, require_value
from sealift.ids import Digest, Role
from sealift.release.client import prove_lease
from sealift.release.receipt import instance_bound
from tests.attacks.scenarios.world import AttackWorld, Change, refusal

WATCHER: Final = "/usr/bin/watcher"
UNLISTED: Final = "/tmp/miner"
_STAND_IN: Final = SigningKey.generate()
Entries = tuple[bytes, ...]


@dataclass(frozen=True)
class SpoilingAttester:
    """Shows the host's evidence after it was changed."""

    host: Attester
    spoil: Callable[[TpmBody], TpmBody]

    def collect(self, bound: bytes) -> Evidence:
        """The host's, spoilt."""
        body = self.spoil(TpmBody.parse(self.host.collect(bound).body))
        return body.to_evidence()


@dataclass(frozen=True)
class RepeatingAttester:
    """Shows evidence of an earlier session."""

    earlier: Evidence

    def collect(self, bound: bytes) -> Evidence:
        """What was collected then."""
        return self.earlier


# Development evidence, appraised here (T5): each fails for a rule of its own.


def other_challenge(world: AttackWorld) -> str:
    """Evidence of an earlier session, for one that has another challenge."""
    return _appraised(world, secrets.token_bytes(32))


def unbound_key(world: AttackWorld) -> str:
    """Genuine evidence that binds the instance key of another process."""
    return _appraised(world, _bound(world, SigningKey.generate().public_key))


def other_role(world: AttackWorld) -> str:
    """Evidence that the same process would show as a holder."""
    instance, digest = world.endpoint.instance.public_key, world.agreement.digest
    role = Role.HOLDER.encode()
    bound = labelled(Label.EVIDENCE, b"receipt", role, instance.raw, digest.raw)
    return _appraised(world, bound)


def other_attester(world: AttackWorld) -> str:
    """Evidence of a host that the agreement does not name."""
    return _appraised(world, _bound(world), signer=_STAND_IN)


def not_asked_for(world: AttackWorld) -> str:
    """Development evidence where the agreement accepts a real level only."""
    return _appraised(world, _bound(world), accept=(Level.TEE,))


def genuine(world: AttackWorld) -> bool:
    """Evidence of the agreed host, bound to what it must be bound to, is accepted."""
    return not _appraised(world, _bound(world))


def _bound(world: AttackWorld, instance: PublicKey | None = None) -> bytes:
    own = instance or world.endpoint.instance.public_key
    return instance_bound(own, world.agreement.digest)


def _appraised(
    world: AttackWorld,
    bound: bytes,
    signer: SigningKey | None = None,
    accept: tuple[Level, ...] = (Level.DEVELOPMENT,),
) -> str:
    attester = world.consortium.development()
    if signer is not None:
        attester = _development(world.agreement.agreement.code.digest, signer)
    judge = replace(world.agreement.appraiser(), accept=accept)
    return refusal(lambda: judge.appraise(attester.collect(bound), _bound(world)))


# A host with a TPM before an owner's broker: the key comes, or why not (P1, P2, N8).


def agreed_host(world: AttackWorld) -> bool:
    """The agreed host, as it is, gets the key."""
    return not world.broker.ask()


def other_boot(world: AttackWorld) -> str:
    """(P1) The host booted something else than was agreed."""
    return world.broker.ask(
        change=_tpm(
            lambda tpm: replace(tpm, pcrs={**tpm.pcrs, "4": (bytes(31) + b"\x01",)})
        )
    )


def other_program(world: AttackWorld) -> str:
    """(P1) The host ran a program that nobody agreed to."""

    def change(tpm: TpmReferences) -> TpmReferences:
        ima = require_value(tpm.ima)
        *kept, _ = ima.allow.items()
        return replace(tpm, ima=replace(ima, allow=dict(kept)))

    return world.broker.ask(change=_tpm(change))


def measures_too_little(world: AttackWorld) -> str:
    """(N8) Nothing on the list is forbidden, and what should watch the host never ran."""

    def change(tpm: TpmReferences) -> TpmReferences:
        ima = require_value(tpm.ima)
        return replace(tpm, ima=replace(ima, must=(*ima.must, WATCHER)))

    return world.broker.ask(change=_tpm(change))


def other_host(world: AttackWorld) -> str:
    """(P1) A clean machine elsewhere answers: its endorsement key is not pinned."""
    return world.broker.ask(change=_tpm(lambda tpm: replace(tpm, endorsement_keys=())))


def dropped_entry(world: AttackWorld) -> str:
    """(P2) The list hides its last entry."""
    return _spoilt(world, lambda entries: entries[:-1])


def swapped_entries(world: AttackWorld) -> str:
    """(P2) The list tells another order."""
    return _spoilt(world, lambda entries: (entries[0], *reversed(entries[1:])))


def stale_quote(world: AttackWorld) -> str:
    """(P2) A quote of before."""
    earlier = world.broker.host.attester.collect(bytes(32))
    return world.broker.ask(RepeatingAttester(earlier))


def _tpm(change: Callable[[TpmReferences], TpmReferences]) -> Change:
    def changed(ours: Appraiser) -> Appraiser:
        values = ours.references
        return replace(
            ours, references=replace(values, tpm=change(require_value(values.tpm)))
        )

    return changed


def _spoilt(world: AttackWorld, change: Callable[[Entries], Entries]) -> str:
    def spoil(body: TpmBody) -> TpmBody:
        return replace(body, ima_list=b"".join(change(entries_of(body.ima_list))))

    return world.broker.ask(SpoilingAttester(world.broker.host.attester, spoil))


def entries_of(raw: bytes) -> Entries:
    """The bytes of each entry of a binary list."""
    found, place = [], 0
    while place < len(raw):
        name = int.from_bytes(raw[place + 24 : place + 28], "little")
        content = place + 28 + name
        end = content + 4 + int.from_bytes(raw[content : content + 4], "little")
        found.append(raw[place:end])
        place = end
    return tuple(found)


# After the release (P5), and levels (P6, P7).


def falls_later(world: AttackWorld) -> str:
    """(P5) Runs an unlisted program after its key was released."""
    broker = world.broker
    with broker.session() as session:
        broker.collect(session)
        broker.host.kernel.run(UNLISTED, b"what nobody agreed to", allow=False)
        with suppress(SealiftError):
            prove_lease(session)
    world.renew_broker()
    return broker.box.refused


def goes_on(world: AttackWorld) -> bool:
    """(P5) An honest host renews its lease while it runs what is listed."""
    broker = world.broker
    with broker.session() as session:
        broker.collect(session)
        broker.host.kernel.run("/usr/bin/agent", b"agent", allow=False)
        return prove_lease(session).good


def weaker_evidence(world: AttackWorld) -> str:
    """(P6) Development evidence where an attested host is rehearsed."""
    return _weaker(world, _with_attester)


def accepted_weaker(world: AttackWorld) -> bool:
    """(P6) The same evidence where the agreement rehearses nothing."""
    return not _weaker(world, lambda our: replace(_with_attester(our), rehearse=None))


def software_as_hardware(world: AttackWorld) -> str:
    """(P7) A software TPM, and an agreement that wants a real attested host."""
    return world.broker.ask(change=_only_real)


def software_called_chip(world: AttackWorld) -> str:
    """(P7) The same, with the software TPM's maker called a vendor of chips."""

    def as_hardware(tpm: TpmReferences) -> TpmReferences:
        roots = tuple(replace(root, operator="hardware") for root in tpm.roots)
        return replace(tpm, roots=roots)

    return world.broker.ask(change=lambda ours: _only_real(_tpm(as_hardware)(ours)))


def _only_real(ours: Appraiser) -> Appraiser:
    return replace(ours, accept=(Level.ATTESTED_HOST,), rehearse=None)


def _weaker(world: AttackWorld, change: Change) -> str:
    code = world.broker.agreement.agreement.code.digest
    return world.broker.ask(_development(code, _STAND_IN), change)


def _development(code: Digest, signer: SigningKey) -> DevelopmentAttester:
    return DevelopmentAttester(signer, role=Role.ACCELERATOR, code_bundle=code)


def _with_attester(ours: Appraiser) -> Appraiser:
    keys = (_STAND_IN.public_key,)
    values = replace(ours.references, development_attesters=keys)
    return replace(ours, references=values)
