"""Where a recipe failed, for the code's owner alone: others hear ``recipe-error`` (H8).

Line, kind of exception and step are a recipe's to choose, also by what it saw of rows.
So they leave the accelerator sealed, each code owner's copy by HPKE to its key in the
agreement, signed by the instance key that the evidence beside it binds. Nothing of an
exception's text is in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sealift.attest.evidence import Evidence
from sealift.codec import decode, encode
from sealift.crypto.identity import Identity
from sealift.crypto.keys import TOKEN, Label
from sealift.crypto.sign import PublicKey, SigningKey
from sealift.errors import JobError, PolicyError, SealiftError
from sealift.ids import Digest
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.files import read_whole
from sealift.release.receipt import appraise_instance
from sealift.train.loop.faults import Fault, explain
from sealift.travel.visit.messages import Output

MAX_NOTE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultInfo:
    """Whose fault of which run it is, and for whom; HPKE's info."""

    kind: Literal["fault"] = "fault"
    job: str
    agreement: Digest
    owner: str
    instance: PublicKey


@dataclass(frozen=True, slots=True)
class FaultNote:
    """A fault that one code owner can read; the evidence binds the instance key."""

    info: FaultInfo
    wrapped: bytes
    signature: bytes
    evidence: Evidence


@dataclass(frozen=True, slots=True)
class OpenedFault:
    """A fault whose origin was checked: in which job, and what is wrong."""

    job: str
    level: str
    error: SealiftError


def readers_of(agreement: Agreement) -> tuple[str, ...]:
    """Whoever wrote the code; the model's owner where nobody says that it did."""
    parties = agreement.parties
    owners = tuple(each.name for each in parties if "code_owner" in each.roles)
    if owners or agreement.model_owner is None:
        return owners
    return (agreement.model_owner,)


def seal_fault(
    fault: Fault,
    verified: VerifiedAgreement,
    job: str,
    *,
    instance: SigningKey,
    evidence: Evidence,
) -> Iterator[Output]:
    """One file for each reader."""
    for owner in readers_of(verified.agreement):
        info = FaultInfo(
            job=job,
            agreement=verified.digest,
            owner=owner,
            instance=instance.public_key,
        )
        context = encode(info)
        wrapped = verified.party(owner).hpke.seal(context, encode(fault))
        signature = instance.sign(Label.OUTPUT, wrapped + context)
        note = FaultNote(info, wrapped, signature, evidence)
        yield Output(f"fault.{owner}.json", encode(note), last=True)


def hidden_fault(agreement: Agreement) -> JobError:
    """What everybody else hears."""
    return JobError(
        "the recipe failed",
        why=f"where is for {' and '.join(readers_of(agreement))} alone",
        fix="Its code's owner opens RUN.fault.NAME.json with `sealift output open`",
        code="recipe-error",
    )


def open_fault(path: Path, owner: Identity, verified: VerifiedAgreement) -> OpenedFault:
    """What went wrong, for its reader.

    Raises:
        PolicyError: ``other-key``, if it is for somebody else; ``other-output``, if it is
            of another agreement.
        RefusedError: if it is not by an accelerator that the agreement accepts.
        MalformedError: if it is no such note.
        UnavailableError: if it cannot be read.
    """
    note = decode(FaultNote, read_whole(path, MAX_NOTE_BYTES))
    info = note.info
    if info.agreement != verified.digest:
        raise PolicyError("the note is of another agreement", code="other-output")
    if info.owner != owner.name or verified.party(owner.name).sign != owner.public_key:
        raise PolicyError(f"the note is for {info.owner}", code="other-key")
    context = encode(info)
    info.instance.verify(Label.OUTPUT, note.wrapped + context, note.signature)
    level = appraise_instance(note.evidence, info.instance, verified).standing
    opened = owner.hpke.open(context, note.wrapped)
    fault = decode(Fault, opened.reveal(TOKEN))
    return OpenedFault(info.job, level, explain(fault))
