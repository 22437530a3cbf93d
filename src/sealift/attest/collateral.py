"""Collateral: endorsements and their state on one day, so verification is offline.

Certificates, revocation lists, TCB information, signed reference manifests: by name,
with the time as of which they were fetched. Collateral comes from the verifier's side,
never from the attester (rule H13). Who uses it says how old it may be.
Source: RFC 9334 section 4.1 (endorsements); spec/evidence.md section Collateral.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from sealift.codec import decode, encode
from sealift.crypto.ocsp import Revocations, StatusAnswer
from sealift.crypto.revocation import RevocationList
from sealift.errors import EvidenceError, StaleError

DAY_S: Final = 86_400
MAX_BUNDLE_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Collateral:
    """What endorses evidence, as of one time.

    Attributes:
        as_of_s: When it was fetched, seconds since 1970; 0 if there is none.
        items: Bytes by name; a kind's names begin with the kind: ``tdx/tcb-info``.
    """

    as_of_s: int = 0
    items: Mapping[str, bytes] = field(default_factory=dict)

    def item(self, name: str) -> bytes:
        """The item of that name.

        Raises:
            EvidenceError: ``collateral-missing``.
        """
        if name not in self.items:
            raise EvidenceError(
                f"the collateral has no {name}",
                why="this evidence cannot be judged without it",
                code="collateral-missing",
            )
        return self.items[name]

    def named(self, prefix: str) -> dict[str, bytes]:
        """Every item whose name begins with ``prefix``."""
        return {
            name: raw for name, raw in self.items.items() if name.startswith(prefix)
        }


def read_revocations(collateral: Collateral, kind: str) -> Revocations:
    """Every revocation list and OCSP answer about one kind that this side has.

    Raises:
        MalformedError: if one does not parse.
    """
    lists, answers = (
        collateral.named(f"{kind}/{n}/").values() for n in ("crl", "ocsp")
    )
    return Revocations(
        tuple(map(RevocationList, lists)), tuple(map(StatusAnswer, answers))
    )


def require_recent(collateral: Collateral, *, at_s: int, max_age_s: int) -> None:
    """Refuse collateral that is older than the agreement allows, or from the future.

    Raises:
        StaleError: ``collateral-stale``.
    """
    if not 0 <= at_s - collateral.as_of_s <= max_age_s:
        raise StaleError(
            "the collateral is not of this time",
            why=f"it is {(at_s - collateral.as_of_s) / DAY_S:.1f} days old, "
            f"{max_age_s / DAY_S:.1f} are allowed",
            code="collateral-stale",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CollateralBundle:
    """Collateral as a file: canonical JSON, items in base64url."""

    format: Literal["sealift-collateral"] = "sealift-collateral"
    version: Literal[1] = 1
    as_of_s: int
    items: dict[str, bytes]


def parse_bundle(raw: bytes) -> Collateral:
    """The collateral of a bundle's file.

    Raises:
        MalformedError: if it is none.
    """
    bundle = decode(CollateralBundle, raw, max_bytes=MAX_BUNDLE_BYTES)
    return Collateral(as_of_s=bundle.as_of_s, items=bundle.items)


def pack_bundle(collateral: Collateral) -> bytes:
    """The file of some collateral."""
    items = dict(collateral.items)
    return encode(CollateralBundle(as_of_s=collateral.as_of_s, items=items))
