"""Endorsements: the roots of hardware vendors, and collateral on one day, for use offline.

Certificates, revocation lists, TCB information, signed reference manifests: by name,
with the time as of which they were fetched. Collateral comes from the verifier's side,
never from the attester (rule H13). Who uses it says how old it may be. Certificates of
roots come with evidence or collateral; which of them counts is decided here, by SHA-256
of their key (SubjectPublicKeyInfo), in code that the parties agree on by its digest.
Source: RFC 9334 section 4.1 (endorsements); spec/evidence.md section Collateral.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from sealift.codec import decode, encode
from sealift.crypto.chain import RevocationList, Revocations, StatusAnswer
from sealift.errors import EvidenceError, StaleError
from sealift.ids import Digest

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
            whole = (
                "the collateral" if self.items else "there is no bundle of collateral"
            )
            raise EvidenceError(
                f"{whole} has no {name}" if self.items else whole,
                why=f"this evidence cannot be verified without {name}",
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
            "the collateral is too old, or is from the future",
            why=(
                f"it is {(at_s - collateral.as_of_s) / DAY_S:.1f} days old; "
                f"{max_age_s / DAY_S:.1f} days are allowed"
            ),
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


# Intel SGX Root CA: https://certificates.trustedservices.intel.com
INTEL_SGX_ROOTS: Final[dict[str, Digest]] = {
    "Intel SGX Root CA": Digest.from_text(
        "sha256:a0af031289f5d5d4132f9186068a7fc13628633ba235777472e29b6b6c67a49e"
    ),
}

# As NVIDIA/nvtrust carries them: guest_tools/gpu_verifiers/local_gpu_verifier, certs.
NVIDIA_DEVICE_ROOTS: Final[dict[str, Digest]] = {
    "NVIDIA Device Identity CA": Digest.from_text(
        "sha256:a90c4eb5acfd3e3d03a25db6a26b84f720ad0503196c627c21ddd48dd85b06a4"
    ),
}
NVIDIA_RIM_ROOTS: Final[dict[str, Digest]] = {
    "NVIDIA CoRIM signing Root CA": Digest.from_text(
        "sha256:dec1dc316477aa851eebdf51327ae9f864bc8d89254657ed1e7eb9168af1e1a3"
    ),
}

# AMD root keys (ARK) by product: https://kdsintf.amd.com/vcek/v1/{product}/cert_chain
AMD_ARKS: Final[Mapping[str, Digest]] = {
    "Milan": Digest.from_text(
        "sha256:9f056bee44377e29308cb5ffa895bdfb62d18881fa6bed8d6f075b0204089cb9"
    ),
    "Genoa": Digest.from_text(
        "sha256:429a69c9422aa258ee4d8db5fcda9c6470ef15f8cd5a9cebd6cbc7d90b863831"
    ),
    "Turin": Digest.from_text(
        "sha256:4f125410563a2ab9a50356f9243f6fe0b6f73de98603f53f90339c70e9d7ad08"
    ),
}
