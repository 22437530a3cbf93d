"""Whether an SNP report is genuine: signature, key, chain, revocation.

Apart from the evidence that carries it, because reports come in Azure's evidence too.
Source: spec/evidence-snp.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sealift.attest.collateral import Collateral
from sealift.attest.snp.certificate import (
    VCEK_NAME,
    VLEK_NAME,
    Endorsement,
    parse_certificates,
    parse_endorsement,
)
from sealift.attest.snp.report import Report, parse_report, parse_tcb
from sealift.crypto.certificate import Certificate, read_certificate
from sealift.crypto.chain import verify_chain
from sealift.crypto.ecdsa import EcdsaKey
from sealift.crypto.revocation import RevocationList
from sealift.errors import EvidenceError, MalformedError
from sealift.ids import Digest

_LEAF_NAME: Final = {"VCEK": VCEK_NAME, "VLEK": VLEK_NAME}


@dataclass(frozen=True, slots=True)
class SnpVerdict:
    """A genuine report.

    Attributes:
        report: What was signed.
        endorsement: What AMD says about the key that signed it.
        revocation_checked: Whether AMD's list was looked at.
    """

    report: Report
    endorsement: Endorsement
    revocation_checked: bool

    @property
    def chip_id(self) -> bytes:
        """The chip; empty if an operator's key signed."""
        return self.endorsement.chip_id


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpTrust:
    """What genuineness depends on, beside the evidence.

    Attributes:
        collateral: From the verifier's side: ``snp/crl-PRODUCT``, and certificates that
            the evidence may lack: ``snp/vcek/CHIP``, ``snp/vlek/NAME``, ``snp/chain/PRODUCT``.
        roots: AMD's root keys by product.
        at_s: Time to judge certificates and lists at.
        revocation: Whether the list must be there.
    """

    collateral: Collateral
    roots: Mapping[str, Digest]
    at_s: int
    revocation: bool = True


def verify_report(
    raw: bytes, certificates: Sequence[bytes], trust: SnpTrust
) -> SnpVerdict:
    """Verify a report down to AMD's root.

    Raises:
        MalformedError: if report or certificates do not parse.
        EvidenceError: ``snp-unsigned``, ``snp-key-missing``, ``snp-key-foreign``,
            ``snp-signature``, ``collateral-missing``, ``collateral-foreign``, or of the
            chain (``verify_chain``).
    """
    report = parse_report(raw)
    if report.signing_key == "NONE":
        raise EvidenceError(
            "the report is not signed at all",
            why="its host forbids signing with the chip's key (MASK_CHIP_KEY)",
            code="snp-unsigned",
        )
    others = _gather(report, certificates, trust.collateral)
    leaf, endorsement = _find_key(report, others)
    _verify_key(leaf, endorsement, others, trust)
    key = leaf.key()
    if not isinstance(key, EcdsaKey):
        raise _foreign("its certificate has a key of another kind")
    report.verify_signature(key)
    return SnpVerdict(report, endorsement, trust.revocation)


def _gather(
    report: Report, certificates: Sequence[bytes], collateral: Collateral
) -> list[Certificate]:
    """Every certificate at hand: of the evidence first, then of collateral."""
    prefixes = (f"snp/vcek/{report.chip_id.hex()}", "snp/vlek/", "snp/chain/")
    stored = (raw for prefix in prefixes for raw in collateral.named(prefix).values())
    found = [read_certificate(der) for der in certificates]
    return found + [each for raw in stored for each in parse_certificates(raw)]


def _find_key(
    report: Report, certificates: Sequence[Certificate]
) -> tuple[Certificate, Endorsement]:
    """The certificate of the key that the report says signed it."""
    name = _LEAF_NAME[report.signing_key]
    problems = []
    for certificate in (each for each in certificates if each.subject_name == name):
        endorsement = parse_endorsement(certificate)
        problem = _difference(report, endorsement)
        if not problem:
            return certificate, endorsement
        problems.append(problem)
    if problems:
        raise _foreign(problems[0])
    raise EvidenceError(
        f"there is no {name} certificate",
        why=f"the report says that such a key signed it; chip {report.chip_id.hex()}",
        code="snp-key-missing",
    )


def _difference(report: Report, endorsement: Endorsement) -> str:
    """How the certificate's facts differ from the report's; empty if they fit."""
    if report.product and report.product != endorsement.product:
        return f"the key is of {endorsement.product}, the report of {report.product}"
    if report.cpuid and not report.product:
        return f"no product is known of CPUID {report.cpuid}"
    try:
        reported = parse_tcb(report.reported_tcb, endorsement.product)
    except MalformedError as error:
        return f"the key is of {endorsement.product}: {error.what}"
    if reported != endorsement.tcb:
        return f"key for {endorsement.tcb.to_text()}, report by {reported.to_text()}"
    if report.signing_key == "VLEK":
        # The chip loaded it from its operator: it names no chip.
        named = not endorsement.chip_id and bool(endorsement.operator)
        return "" if named else "the key is not named after an operator"
    same = endorsement.chip_id == report.chip_id and not endorsement.operator
    return "" if same else "the key is of another chip, or the host hides the chip"


def _verify_key(
    leaf: Certificate,
    endorsement: Endorsement,
    others: Sequence[Certificate],
    trust: SnpTrust,
) -> None:
    root = trust.roots.get(endorsement.product)
    lists = (
        [RevocationList(trust.collateral.item(f"snp/crl-{endorsement.product}"))]
        if trust.revocation
        else []
    )
    path = verify_chain(
        leaf,
        others,
        (root,) if root else (),
        at_s=trust.at_s,
        revocation_lists=lists,
    )
    if len(path) != 3:
        raise _foreign(f"a chain of {len(path)} certificates, AMD's have 3")
    if lists and lists[0].issuer != path[-1].subject:
        raise EvidenceError(
            "the revocation list is not that of the key's root",
            why=f"it was issued by {lists[0].issuer}",
            code="collateral-foreign",
        )


def _foreign(why: str) -> EvidenceError:
    return EvidenceError(
        "the certificate is not of the key that signed the report",
        why=why,
        code="snp-key-foreign",
    )
