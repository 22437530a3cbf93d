"""Sets of reference values: signed, versioned files that agreements name.

Lists of what may run on a host are long and change with every update, so an agreement can
name a set: by its name, its signer and the lowest number it takes. A number never goes
back (rule H13 for what endorses, here for what is expected).
Source: spec/evidence.md section Reference sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, Literal

from sealift.attest.reference import ReferenceValues
from sealift.codec import MAX_INTEGER, decode, encode
from sealift.crypto.keys import Label
from sealift.crypto.sign import PublicKey, Signer
from sealift.errors import (
    AuthenticationError,
    EvidenceError,
    MalformedError,
    StaleError,
)
from sealift.ids import check_name

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
            raise MalformedError("a set's number must be 1 or more", field="number")
        if self.values.development_attesters or self.values.enrollers:
            raise MalformedError(
                "a reference set contains keys for development evidence or enrolment",
                why=(
                    "only the agreement may name such keys, because every party reads "
                    "the agreement"
                ),
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
        raise _foreign(wanted, "it was changed after it was signed") from None
    if found.number < max(wanted.number, seen):
        raise StaleError(
            f"the reference set {wanted.name} is outdated",
            why=(
                f"its number is {found.number}; number {max(wanted.number, seen)} was "
                "already used or agreed on"
            ),
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
        values = {
            name: _join(getattr(first, name), getattr(second, name), f"{path}.{name}")
            for name in (each.name for each in fields(first))
        }
        return replace(first, **values)
    if path == ".collateral_max_age_s":
        return min(first, second)
    if path == ".lowest_tier":
        return first  # the agreement's: no set may loosen it
    raise MalformedError(
        "two sources of reference values contradict each other",
        why=f"{path[1:]} is {first} in one source and {second} in the other",
        field=path[1:],
        code="references-conflict",
    )


def _foreign(wanted: SetName, why: str) -> EvidenceError:
    return EvidenceError(
        f"the file is not the agreement's reference set {wanted.name}",
        why=why,
        code="references-foreign",
    )
