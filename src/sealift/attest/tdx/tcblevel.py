"""Which of Intel's TCB levels a platform is at, and what that amounts to.

Source: Intel SGX and TDX DCAP, "TCB level" verification of the quote verification
library: https://api.portal.trustedservices.intel.com/documentation
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sealift.attest.tdx.pck import PlatformFacts
from sealift.attest.tdx.quote import EnclaveReport, TdReport
from sealift.attest.tdx.tcbinfo import (
    ModuleIdentity,
    QeIdentity,
    TcbInfo,
    TcbLevel,
)
from sealift.errors import EvidenceError

UNKNOWN: Final = "Unknown"  # not Intel's: no level of the list matches
_NEEDS_CONFIGURATION: Final = {
    "ConfigurationNeeded",
    "ConfigurationAndSWHardeningNeeded",
    "OutOfDateConfigurationNeeded",
}


def platform_level(
    tcb: TcbInfo, platform: PlatformFacts, body: EnclaveReport | TdReport
) -> TcbLevel | None:
    """The best level whose security versions the platform reaches, or None."""
    for level in tcb.levels:
        sgx = _reaches(platform.components, level.sgx) and platform.pcesvn >= level.svn
        if sgx and (isinstance(body, EnclaveReport) or _tdx_reaches(body, level)):
            return level
    return None


def find_module(tcb: TcbInfo, body: TdReport) -> ModuleIdentity:
    """The identity of the TDX module that made the report.

    Raises:
        EvidenceError: ``tdx-module-unknown``.
    """
    major = body.tee_tcb_svn[1]
    name = f"TDX_{major:02X}" if major else ""
    found = next((each for each in tcb.modules if each.name == name), None)
    if found is None or not _made_by(found, body):
        raise EvidenceError(
            "the TDX module is none of Intel's",
            why=f"major version {major}, signer {body.mrsignerseam.hex()[:16]}…",
            code="tdx-module-unknown",
        )
    return found


def require_quoting_enclave(identity: QeIdentity, qe: EnclaveReport) -> None:
    """Refuse an enclave that is not Intel's quoting enclave.

    Raises:
        EvidenceError: ``quoting-enclave-unknown``.
    """
    flags = _masked(qe.attributes, identity.attributes_mask)
    misc = qe.miscselect & identity.miscselect_mask
    if (
        qe.mrsigner != identity.mrsigner
        or qe.product != identity.product
        or flags != _masked(identity.attributes, identity.attributes_mask)
        or misc != identity.miscselect & identity.miscselect_mask
    ):
        raise EvidenceError(
            "the quoting enclave is none of Intel's",
            why=f"signer {qe.mrsigner.hex()[:16]}…, product {qe.product}",
            code="quoting-enclave-unknown",
        )


def svn_level(levels: Iterable[TcbLevel], svn: int) -> TcbLevel | None:
    """The best level that a security version reaches, or None."""
    return next((level for level in levels if svn >= level.svn), None)


def converge(platform: str, parts: Sequence[str]) -> str:
    """One status of the platform's and those of its quoting enclave and TDX module.

    A part that is out of date makes the platform so; revoked and unknown win over all.
    """
    everything = (platform, *parts)
    for worst in (UNKNOWN, "Revoked"):
        if worst in everything:
            return worst
    if "OutOfDate" not in parts:
        return platform
    needs = platform in _NEEDS_CONFIGURATION
    return "OutOfDateConfigurationNeeded" if needs else "OutOfDate"


def _tdx_reaches(body: TdReport, level: TcbLevel) -> bool:
    # From major version 1 on, the module's own versions are judged by its identity.
    first = 2 if body.tee_tcb_svn[1] else 0
    return _reaches(body.tee_tcb_svn[first:], level.tdx[first:])


def _reaches(found: Sequence[int], lowest: Sequence[int]) -> bool:
    return all(have >= need for have, need in zip(found, lowest, strict=True))


def _made_by(identity: ModuleIdentity, body: TdReport) -> bool:
    attributes = _masked(body.seam_attributes, identity.mask)
    return body.mrsignerseam == identity.mrsigner and (
        attributes == _masked(identity.attributes, identity.mask)
    )


def _masked(value: bytes, mask: bytes) -> bytes:
    return bytes(x & y for x, y in zip(value, mask, strict=True))
