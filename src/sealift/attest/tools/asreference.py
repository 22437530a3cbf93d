"""Genuine evidence of a machine that one trusts, turned into reference values.

What a person vouches for is the machine, as it is now; everything else must hold as it
would for anybody. So what is derived from evidence is used at once: that evidence must
pass every check against it, signatures and collateral included, or nothing comes out.
A guest with debugging on, or a host whose list has a violation, becomes no reference.
Source: spec/evidence.md section Reference sets.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Final, Literal

from sealift import codec
from sealift.attest import composite
from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.nvidia import evidence as nvidia
from sealift.attest.policy import VERIFIER_FOR_MEDIA_TYPE, find_verifier
from sealift.attest.reference import (
    AppraisalBasis,
    ImaReferences,
    NvidiaReferences,
    Operator,
    ReferenceValues,
    SnpReferences,
    TdxReferences,
    TpmReferences,
    TpmRoot,
    join,
)
from sealift.attest.snp import evidence as snp
from sealift.attest.snp.endorsement import (
    VCEK_NAME,
    VLEK_NAME,
    Endorsement,
    parse_certificates,
    parse_endorsement,
)
from sealift.attest.snp.evidence import TCB_FIELDS, SnpReport, parse_report, parse_tcb
from sealift.attest.tdx import evidence as tdx
from sealift.attest.tdx.evidence import TdReport, parse_quote
from sealift.attest.tdx.platform import platform_facts
from sealift.attest.tdx.verifier import BOOT_REGISTERS, SEPT_VE_DISABLE, features_of
from sealift.attest.tpm import evidence as tpm
from sealift.attest.tpm.enrolment import Enrolment, sign_enrolment
from sealift.attest.tpm.ima import ImaState, parse_list, replay_until
from sealift.attest.tpm.structures import parse_public
from sealift.attest.tpm.verifier import LOADER_PCRS, REQUIRED_PCRS
from sealift.attest.verifier import UNBOUND, VerifierKind, require_passed
from sealift.crypto.certificate import Certificate, certificates_from_pem
from sealift.crypto.sign import SigningKey
from sealift.errors import EvidenceError, MalformedError, PolicyError, UsageError
from sealift.ids import Digest

Bank = Literal["sha256", "sha384"]
_BANKS: Final[tuple[Bank, ...]] = ("sha256", "sha384")
# An interpreter, an IMA policy, or an agent, by the usual names of their files.
_MUST: Final = re.compile(r"/(?:python3?(?:\.\d+)?|ima[-_]policy[^/]*|[^/]*agent)$")
_PINNED_PCRS: Final = (*REQUIRED_PCRS, *LOADER_PCRS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """What a person says about the machine, and what its evidence is judged by.

    Attributes:
        at_s: The time to judge certificates at, since 1970.
        bound: What the evidence must carry; None for a file whose challenge is unknown.
        collateral: From this side.
        operator: Who runs the TPM; only a person can say.
        must: Paths that every host's list must name, beside the interpreters, policies
            and agents that this one's names.
        pin: Whether no other machine of the same kind is accepted.
        revocation: Whether revocation must be looked up, now and by whoever uses this.
        verifiers: By media type.
    """

    at_s: int
    bound: bytes | None = None
    collateral: Collateral = field(default_factory=Collateral)
    operator: Operator | None = None
    must: tuple[str, ...] = ()
    pin: bool = False
    revocation: bool = True
    verifiers: Mapping[str, VerifierKind] = field(
        default_factory=lambda: VERIFIER_FOR_MEDIA_TYPE
    )


def to_references(evidence: Evidence, trusted: Trusted) -> ReferenceValues:
    """References that accept machines as this one was, proved on its own evidence.

    Raises:
        RefusedError: if the evidence does not pass against them (any code of its kind).
        MalformedError: if it does not parse.
        UsageError: ``references-operator``: nobody said who runs the TPM.
        PolicyError: ``references-kind``: a kind that no reference set may name.
    """
    values = _derive(evidence, trusted)
    _prove(evidence, values, trusted)
    return values


def _derive(evidence: Evidence, trusted: Trusted) -> ReferenceValues:
    derive = _DERIVE.get(evidence.media_type)
    if derive is None:
        raise PolicyError(
            f"evidence of kind {evidence.kind} contains no reference values",
            why=(
                "keys of development evidence can be named only in the agreement, and "
                "the values of Azure's guests must be pinned by the parties"
            ),
            code="references-kind",
        )
    return derive(evidence.body, trusted)


def _prove(evidence: Evidence, values: ReferenceValues, trusted: Trusted) -> None:
    shown, known = _vouch(evidence, values)
    claims = find_verifier(shown, trusted.verifiers).examine(
        shown,
        AppraisalBasis(
            bound=trusted.bound,
            references=known,
            collateral=trusted.collateral,
            at_s=trusted.at_s,
        ),
    )
    unknown = trusted.bound is None
    require_passed(c for c in claims.checks if not (unknown and c.code == UNBOUND))


def _vouch(
    evidence: Evidence, values: ReferenceValues
) -> tuple[Evidence, ReferenceValues]:
    """The same evidence, its TPM's keys enrolled by one who is trusted just here."""
    if evidence.media_type == composite.MEDIA_TYPE:
        whole = composite.CompositeBody.parse(evidence.body)
        lead, known = _vouch(whole.lead, values)
        return replace(whole, lead=lead).to_evidence(), known
    if values.tpm is None or evidence.media_type != tpm.MEDIA_TYPE:
        return evidence, values
    body, here = tpm.TpmBody.parse(evidence.body), SigningKey.generate()
    enrolment = Enrolment(
        attestation_key=parse_public(body.attestation_key).name,
        endorsement_key=values.tpm.endorsement_keys[0],
        root=values.tpm.roots[0].key,
        at_s=0,
    )
    body = replace(body, enrolments=(sign_enrolment(enrolment, here),))
    shown = Evidence(evidence.kind, evidence.media_type, codec.encode(body))
    return shown, replace(values, enrollers=(here.public_key,))


def _of_tpm(raw: bytes, trusted: Trusted) -> ReferenceValues:
    if trusted.operator is None:
        raise UsageError(
            "the operator of this TPM is not given",
            why=(
                "its certificate does not distinguish a chip from a cloud's virtual TPM"
            ),
            code="references-operator",
        )
    body = tpm.TpmBody.parse(raw)
    registers = body.registers()
    bank = next((each for each in _BANKS if each in registers), _BANKS[0])
    values = registers.get(bank, {})
    key, root = _endorsed(body, trusted)
    allowed = _allowed(body.ima_list, values.get(tpm.IMA_PCR, b""), bank)
    return ReferenceValues(
        tpm=TpmReferences(
            roots=(TpmRoot(name=root.subject, key=root.spki_digest,
                           operator=trusted.operator),),
            endorsement_keys=(key,),
            bank=bank,
            pcrs={str(n): (values[n],) for n in _PINNED_PCRS if n in values},
            ima=_ima(allowed, trusted) if body.ima_list else None,
            revocation="required" if trusted.revocation else "none",
        )
    )  # fmt: skip


def _ima(allowed: dict[str, tuple[Digest, ...]], trusted: Trusted) -> ImaReferences:
    """What may run, and of it what must have been measured wherever it counts."""
    known = sorted(path for path in allowed if _MUST.search(path))
    must = tuple(dict.fromkeys((*trusted.must, *known)))
    if not must:
        raise UsageError(
            "the host's list names no interpreter, policy or agent",
            why=(
                "without a program that must have run, a host that measures nothing "
                "would be accepted"
            ),
            code="references-must",
        )
    return ImaReferences(allow=allowed, must=must)


def _endorsed(body: tpm.TpmBody, trusted: Trusted) -> tuple[Digest, Certificate]:
    """The endorsement key, and the highest issuer of its certificate that is at hand."""
    ours = trusted.collateral.named("tpm/issuer/").values()
    chain = [Certificate(raw) for raw in (*body.certificates, *ours)]
    if not chain:
        raise MalformedError("the evidence has no certificate of its TPM")
    top, issuers = chain[0], chain[1:]
    for _ in chain:
        above = [each for each in issuers if each.subject == top.issuer]
        if not above or above[0].der == top.der:
            break
        top = above[0]
    if top.der == chain[0].der:
        raise EvidenceError(
            "the issuer of this TPM's certificate is not known",
            why=(
                f"the certificate was issued by {top.issuer}, whose certificate was "
                "not given"
            ),
            code="references-no-root",
        )
    return chain[0].spki_digest, top


def _allowed(raw: bytes, quoted: bytes, bank: Bank) -> dict[str, tuple[Digest, ...]]:
    """Every file of the list that a quote covers, by path."""
    entries, state = parse_list(raw), ImaState.at_boot(bank)
    covered = replay_until(entries, state.register, quoted, bank=bank)
    found: dict[str, tuple[Digest, ...]] = {}
    for place in range(covered or 0):
        each = entries.entry(place)
        if each.algorithm == "sha256" and not each.verity:
            known = (*found.get(each.path, ()), Digest(each.digest))
            found[each.path] = tuple(dict.fromkeys(known))
    return found


def _of_tdx(raw: bytes, trusted: Trusted) -> ReferenceValues:
    quote = parse_quote(tdx.TdxBody.parse(raw).quote)
    report, pck = quote.body, certificates_from_pem(quote.chain)[0]
    if not isinstance(report, TdReport):
        raise MalformedError("the quote is of an enclave, not of a TDX guest")
    return ReferenceValues(
        tdx=TdxReferences(
            mrtd=(report.mrtd,),
            rtmr={str(i): (report.rtmr[i],) for i in BOOT_REGISTERS},
            mrconfigid=(report.mrconfigid,),
            mrservicetd=(report.mrservicetd or bytes(48),),
            sept_ve_disable=bool(report.attributes & SEPT_VE_DISABLE),
            platforms=(platform_facts(pck).ppid,) if trusted.pin else (),
            features=features_of(report),
        )
    )


def _of_snp(raw: bytes, trusted: Trusted) -> ReferenceValues:
    body = snp.SnpBody.parse(raw)
    report = parse_report(body.report)
    key = _signer(report, body.certificates, trusted.collateral)
    return ReferenceValues(
        snp=SnpReferences(
            measurement=(report.measurement,),
            host_data=(report.host_data,),
            max_vmpl=report.vmpl,
            min_tcb={key.product: _floor(report, key.product)},
            chips=(key.chip_id,) if trusted.pin and key.chip_id else (),
            operators=(key.operator,) if key.operator else (),
            revocation="required" if trusted.revocation else "waived",
        )
    )


def _signer(
    report: SnpReport, certificates: tuple[bytes, ...], collateral: Collateral
) -> Endorsement:
    """Whoever signed says so in its certificate; whether it did, the proof finds."""
    prefixes = (f"snp/vcek/{report.chip_id.hex()}", "snp/vlek/")
    ours = [raw for each in prefixes for raw in collateral.named(each).values()]
    name = VLEK_NAME if report.signing_key == "VLEK" else VCEK_NAME
    for raw in (*certificates, *ours):
        for each in parse_certificates(raw):
            if each.subject_name == name:
                return parse_endorsement(each)
    raise EvidenceError(
        f"the {name} certificate is missing",
        why="it names the product and the firmware of the report",
        code="snp-key-missing",
    )


def _floor(report: SnpReport, product: str) -> dict[str, int]:
    """The lowest of each version that the report states, zeros left out."""
    states = (report.reported_tcb, report.committed_tcb, report.launch_tcb)
    stated = [parse_tcb(raw, product) for raw in states]
    lowest = {name: min(getattr(tcb, name) for tcb in stated) for name in TCB_FIELDS}
    return {name: least for name, least in lowest.items() if least}


def _of_nvidia(raw: bytes, trusted: Trusted) -> ReferenceValues:
    body = nvidia.NvidiaBody.parse(raw)
    report, leaf = nvidia.parse_report(body.report), Certificate(body.certificates[0])
    switch = report.kind == "switch"
    return ReferenceValues(
        nvidia=NvidiaReferences(
            drivers=() if switch else (report.driver,),
            vbios=(report.vbios,),
            modes=() if switch else (report.mode,),
            devices=(str(leaf.serial),) if trusted.pin else (),
            revocation="required" if trusted.revocation else "if-known",
        )
    )


def _of_composite(raw: bytes, trusted: Trusted) -> ReferenceValues:
    body = composite.CompositeBody.parse(raw)
    return reduce(join, (_derive(each, trusted) for each in (body.lead, *body.devices)))


_DERIVE: Final[Mapping[str, Callable[[bytes, Trusted], ReferenceValues]]] = {
    composite.MEDIA_TYPE: _of_composite,
    nvidia.MEDIA_TYPE: _of_nvidia,
    snp.MEDIA_TYPE: _of_snp,
    tdx.MEDIA_TYPE: _of_tdx,
    tpm.MEDIA_TYPE: _of_tpm,
}
