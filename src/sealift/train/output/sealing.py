"""What leaves the accelerator sealed: the model, and where a recipe failed (rule H8).

The model is sealed under a key made here, which goes by HPKE to the model owner's key
in the agreement, signed with the instance key (rule C9: a key for an output is never
taken from a message). Where parties must approve first, it goes in shares
(``train/output/approval.py``). Nothing is pickled: the plaintext is safetensors.

Where a recipe failed is for the code's owner alone; others hear ``recipe-error``. Line,
kind of exception and step are a recipe's to choose, also by what it saw of rows. So they
leave sealed, each code owner's copy by HPKE to its key in the agreement, signed by the
instance key that the evidence beside it binds. Nothing of an exception's text is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sealift.attest.evidence import Evidence
from sealift.channel.record.layout import (
    HEADER_BYTES,
    TRAILER_BYTES,
    count_records,
    sealed_bytes,
)
from sealift.channel.record.opener import StreamOpener
from sealift.channel.record.sealer import StreamSealer, regroup
from sealift.codec import decode, encode
from sealift.crypto.hash import sha256_of
from sealift.crypto.hpke import HpkePrivateKey, HpkePublicKey, seal_key
from sealift.crypto.identity import Identity
from sealift.crypto.keys import TOKEN, Label, SecretKey
from sealift.crypto.sign import PublicKey, Signer, SigningKey
from sealift.errors import JobError, PolicyError, SealiftError, UnavailableError
from sealift.ids import Digest
from sealift.release.agreement import Agreement
from sealift.release.agreement.signed import VerifiedAgreement
from sealift.release.files import read_whole
from sealift.release.receipt import appraise_instance
from sealift.train.loop.faults import Fault, explain
from sealift.train.loop.held import Chain, Content, Held, read_of
from sealift.train.loop.states import TensorBytes, chain_tensors
from sealift.travel.visit.messages import PART_BYTES, Output

RECORD_BYTES: Final = 256 << 10
MODEL_NAME: Final = "model.sealed"
KEY_NAME: Final = "model.key.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputInfo:
    """What the sealed output is and whom it is for; HPKE's info."""

    kind: Literal["model"]
    job: str
    agreement: Digest
    owner: str
    weights: Digest
    sealed: Digest
    instance: PublicKey


@dataclass(frozen=True, slots=True)
class OutputKey:
    """The key of a sealed output, for its owner alone, signed by the accelerator."""

    info: OutputInfo
    wrapped: bytes
    signature: bytes


def key_name(recipient: str, recipients: Sequence[str]) -> str:
    """The file of one recipient's key; the first one's has no name in it."""
    first = recipient == recipients[0]
    return KEY_NAME if first else f"model.key.{recipient}.json"


@dataclass(frozen=True, slots=True)
class SealedModel:
    """A model under a fresh key.

    Attributes:
        sealed: The stream.
        key: Of the stream.
        content: SHA-256 of the safetensors bytes in it.
    """

    sealed: Content
    key: SecretKey
    content: Digest


def seal_model(state: Mapping[str, TensorBytes]) -> SealedModel:
    """Seal a model as safetensors under a fresh key, record by record."""
    key, plaintext = SecretKey.generate(), chain_tensors(state)
    total = len(plaintext)
    sealer = StreamSealer(key, total_bytes=total, record_bytes=RECORD_BYTES)
    records = count_records(total, RECORD_BYTES)
    around = HEADER_BYTES + TRAILER_BYTES + records * sealed_bytes(0)
    sealed, at = Held.room(total + around), 0
    for part in _sealed(sealer, plaintext):
        sealed.write(at, part)
        at += len(part)
    sealer.close()
    return SealedModel(sealed, key, Digest(sha256_of(plaintext.pieces())))


def _sealed(sealer: StreamSealer, plaintext: Chain) -> Iterator[bytes]:
    yield sealer.header_bytes
    for record in regroup(plaintext.pieces(), RECORD_BYTES):
        yield sealer.seal(record)
    yield sealer.trailer()


def wrap_output_key(
    key: SecretKey, info: OutputInfo, recipient: HpkePublicKey, signer: Signer
) -> OutputKey:
    """Hide the key for its owner and sign; the key is wiped."""
    info_bytes = encode(info)
    wrapped = seal_key(key, info_bytes, recipient)
    key.wipe()
    signature = signer.sign(Label.OUTPUT, wrapped + info_bytes)
    return OutputKey(info, wrapped, signature)


def open_model(
    folder: Path,
    private: HpkePrivateKey,
    instance: PublicKey,
    key_file: str = KEY_NAME,
) -> bytes:
    """The model of a run as safetensors bytes, for its owner.

    Args:
        folder: Holds ``model.sealed`` and the keys to it.
        private: The HPKE key of whoever gets the model.
        instance: The accelerator's instance key, from the verified manifest.
        key_file: Whose of the keys (``key_name``).

    Raises:
        AuthenticationError: if the output or its key was not made by that instance.
        UnavailableError: if a file cannot be read.
    """
    try:
        key_bytes = (folder / key_file).read_bytes()
        sealed = (folder / MODEL_NAME).read_bytes()
    except OSError as error:
        raise UnavailableError(
            f"the output in {folder} cannot be read",
            why=error,
            code="no-file",
        ) from None
    output = decode(OutputKey, key_bytes)
    info_bytes = encode(output.info)
    instance.verify(Label.OUTPUT, output.wrapped + info_bytes, output.signature)
    if Digest.of(sealed) != output.info.sealed:
        raise PolicyError(
            "model.sealed does not belong to its key file", code="other-output"
        )
    return open_stream(sealed, private.open(info_bytes, output.wrapped))


def split_output(content: Content) -> Iterator[tuple[bytes, bool]]:
    """Pieces that fit a message, and whether each is the last."""
    for start in range(0, max(1, len(content)), PART_BYTES):
        last = start + PART_BYTES >= len(content)
        yield read_of(content, start, PART_BYTES), last


def open_stream(sealed: bytes, key: SecretKey) -> bytes:
    """What ``seal_model`` sealed.

    Raises:
        AuthenticationError: if it is not under this key, or was changed.
        MalformedError: if it is no sealed stream.
    """
    opener = StreamOpener(key, sealed[:HEADER_BYTES])
    body = memoryview(sealed)[HEADER_BYTES : len(sealed) - TRAILER_BYTES]
    records = [opener.open(part) for part in _split(body, sealed_bytes(RECORD_BYTES))]
    opener.finish(sealed[len(sealed) - TRAILER_BYTES :])
    opener.close()
    return b"".join(records)


def _split(content: memoryview, size: int) -> Iterator[memoryview]:
    for start in range(0, max(1, len(content)), size):
        yield content[start : start + size]


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
        why=(
            "the place of the error is shown only to "
            f"{' and '.join(readers_of(agreement))}"
        ),
        fix=(
            "The owner of the code opens RUN.fault.NAME.json with `sealift output open`"
        ),
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
        raise PolicyError(
            "the error file belongs to another agreement", code="other-output"
        )
    if info.owner != owner.name or verified.party(owner.name).sign != owner.public_key:
        raise PolicyError(f"the error file is for {info.owner}", code="other-key")
    context = encode(info)
    info.instance.verify(Label.OUTPUT, note.wrapped + context, note.signature)
    level = appraise_instance(note.evidence, info.instance, verified).standing
    opened = owner.hpke.open(context, note.wrapped)
    fault = decode(Fault, opened.reveal(TOKEN))
    return OpenedFault(info.job, level, explain(fault))
