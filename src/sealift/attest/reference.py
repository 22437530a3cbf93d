"""Reference values: what the parties agreed that evidence must show, and sets of them.

They come from the signed agreement, never from the peer. Each kind of evidence reads
the field that concerns it; a kind whose field is empty accepts nothing. Lists of what may
run on a host are long and change with every update, so an agreement can name a set: a
signed, versioned file, by its name, its signer and the lowest number it takes. A number
never goes back (rule H13 for what endorses, here for what is expected).
Source: spec/evidence.md section Reference sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, Literal, TypeVar

from sealift.attest.collateral import DAY_S, Collateral
from sealift.attest.nvidia.references import NvidiaReferences
from sealift.attest.snp.references import SnpReferences
from sealift.attest.tdx.references import TdxReferences
from sealift.attest.tpm.references import TpmReferences
from sealift.codec import MAX_INTEGER, decode, encode
from sealift.crypto.keys import Label
from sealift.crypto.sign import PublicKey, Signer
from sealift.errors import (
    AuthenticationError,
    EvidenceError,
    MalformedError,
    PolicyError,
    StaleError,
)
from sealift.ids import Digest, check_name

LowestTier = Literal["affirming", "warning"]
COLLATERAL_MAX_AGE_S: Final = 30 * DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceValues:
    """What appraisal compares with.

    Attributes:
        development_attesters: Keys whose development evidence is genuine.
        code_bundle: Digest of the code that must run, or None if any may.
        code_files: Digest of every file of that code by path, to compare measured
            modules with; None compares none.
        enrollers: Keys whose word ties an attestation key to its TPM (enrolment).
        tpm: For TPM evidence, and for the virtual TPM of Azure's guests.
        tdx: For TD quotes.
        snp: For SEV-SNP reports.
        nvidia: For GPUs and switches.
        collateral_max_age_s: How old collateral may be (rule H13).
        lowest_tier: The worst tier that is taken; ``warning`` takes a platform whose
            vendor advises a configuration or an update that the parties can live with.
    """

    development_attesters: tuple[PublicKey, ...] = ()
    code_bundle: Digest | None = None
    code_files: dict[str, Digest] | None = None
    enrollers: tuple[PublicKey, ...] = ()
    tpm: TpmReferences | None = None
    tdx: TdxReferences | None = None
    snp: SnpReferences | None = None
    nvidia: NvidiaReferences | None = None
    collateral_max_age_s: int = COLLATERAL_MAX_AGE_S
    lowest_tier: LowestTier = "affirming"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What evidence is judged by, beside itself.

    Attributes:
        bound: What it must carry; None makes that check fail.
        references: From the agreement.
        collateral: From the verifier's side, never from the attester (rule H13).
        at_s: The time to judge certificates and collateral at, since 1970.
    """

    bound: bytes | None
    references: ReferenceValues
    collateral: Collateral
    at_s: int


def no_references(kind: str) -> PolicyError:
    """The refusal of a kind that the agreement has no reference values for."""
    return PolicyError(
        f"the agreement has no reference values for {kind}",
        why="without them nothing that it shows could be right",
        code="references-missing",
    )


T = TypeVar("T")
MAX_SET_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSet:
    """Reference values under a name, with a number that only grows.

    Attributes:
        name: What agreements call it.
        number: One more at every change.
        made_at_s: When, seconds since 1970; for people.
        values: What evidence may show.
    """

    format: Literal["sealift-references"] = "sealift-references"
    version: Literal[1] = 1
    name: str
    number: int
    made_at_s: int
    values: ReferenceValues

    def __post_init__(self) -> None:
        check_name(self.name, what="name of a reference set")
        if not 1 <= self.number <= MAX_INTEGER:
            raise MalformedError("a set's number starts at 1", field="number")
        if self.values.development_attesters or self.values.enrollers:
            raise MalformedError(
                "a reference set names keys of development evidence or enrolment",
                why="only the agreement may, where every party reads it",
                field="values",
            )


@dataclass(frozen=True, slots=True)
class SignedReferenceSet:
    """A set and its signature, not verified yet."""

    set: ReferenceSet
    signer: PublicKey
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SetName:
    """What an agreement says of a set that it takes.

    Attributes:
        name: Its name.
        signer: The key that signs it.
        number: The lowest number that is taken.
    """

    name: str
    signer: PublicKey
    number: int


def sign_set(values: ReferenceSet, signer: Signer) -> SignedReferenceSet:
    """Sign a set."""
    signature = signer.sign(Label.REFERENCE_SET, encode(values))
    return SignedReferenceSet(values, signer.public_key, signature)


def parse_set(raw: bytes) -> SignedReferenceSet:
    """Parse a file; nothing in it is verified yet.

    Raises:
        MalformedError: if it is no reference set.
    """
    return decode(SignedReferenceSet, raw, max_bytes=MAX_SET_BYTES)


def verify_set(
    signed: SignedReferenceSet, wanted: SetName, *, seen: int = 0
) -> ReferenceSet:
    """The set, if it is the wanted one and not older than what was used before.

    Args:
        signed: What was found.
        wanted: What the agreement says of it.
        seen: The highest number of it that this side ever used.

    Raises:
        EvidenceError: ``references-foreign``: another name or signer, or altered.
        StaleError: ``references-rolled-back``.
    """
    found = signed.set
    if (found.name, signed.signer) != (wanted.name, wanted.signer):
        raise _foreign(wanted, "it has another name or another signer")
    try:
        signed.signer.verify(Label.REFERENCE_SET, encode(found), signed.signature)
    except AuthenticationError:
        raise _foreign(wanted, "it was altered after it was signed") from None
    if found.number < max(wanted.number, seen):
        raise StaleError(
            f"the reference set {wanted.name} is an old one",
            why=f"its number is {found.number}, "
            f"number {max(wanted.number, seen)} was used or agreed on",
            code="references-rolled-back",
        )
    return found


def join(first: ReferenceValues, second: ReferenceValues) -> ReferenceValues:
    """What either allows: lists are united, everything else must be equal.

    The tier that is taken is the first one's, the age of collateral the shorter one.

    Raises:
        MalformedError: ``references-conflict``, naming the field.
    """
    united: ReferenceValues = _join(first, second, "")
    return united


def _join(first: Any, second: Any, path: str) -> Any:
    if first is None or second is None or first == second:
        return second if first is None else first
    if isinstance(first, tuple):
        return tuple(dict.fromkeys((*first, *second)))
    if isinstance(first, Mapping):
        keys = dict.fromkeys((*first, *second))
        return {
            key: _join(first.get(key), second.get(key), f"{path}.{key}") for key in keys
        }
    if is_dataclass(first) and not isinstance(first, type):
        return _join_fields(first, second, path)
    if path == ".collateral_max_age_s":
        return min(first, second)
    if path == ".lowest_tier":
        return first  # the agreement's: no set may loosen it
    raise MalformedError(
        "two sources of reference values contradict each other",
        why=f"{path[1:]} is {first} in one and {second} in the other",
        field=path[1:],
        code="references-conflict",
    )


def _join_fields(first: T, second: T, path: str) -> T:
    values = {
        each.name: _join(
            getattr(first, each.name), getattr(second, each.name), f"{path}.{each.name}"
        )
        for each in fields(first)  # type: ignore[arg-type]
    }
    return replace(first, **values)  # type: ignore[type-var]


def _foreign(wanted: SetName, why: str) -> EvidenceError:
    return EvidenceError(
        f"this is not the reference set {wanted.name} of the agreement",
        why=why,
        code="references-foreign",
    )
