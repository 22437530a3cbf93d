"""The platform under a quote: its key's certificate (PCK), and what Intel says of it.

``verify_quote`` follows every link from the quote to Intel's root, with the collateral's
lists and revocation lists. Source: Intel SGX PCK certificate and certificate revocation
list profile, section 1.3.5 (extension 1.2.840.113741.1.13.1); spec/evidence-tdx.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from sealift.attest.binary import (
    BOOLEAN,
    INTEGER,
    OCTET_STRING,
    OID,
    SEQUENCE,
    read_number,
    read_oid,
    read_value,
    read_values,
)
from sealift.attest.collateral import INTEL_SGX_ROOTS, Collateral
from sealift.attest.tdx.evidence import EnclaveReport, TdReport, TdxQuote
from sealift.attest.tdx.tcb import (
    UNKNOWN,
    QeIdentity,
    TcbInfo,
    TcbLevel,
    converge,
    find_module,
    parse_qe_identity,
    parse_tcb_info,
    platform_level,
    require_quoting_enclave,
    split_list,
    svn_level,
)
from sealift.crypto.certificate import Certificate, certificates_from_pem
from sealift.crypto.chain import RevocationList, Revocations, verify_chain
from sealift.crypto.hash import sha256
from sealift.crypto.vendorkeys import EcdsaKey
from sealift.errors import AuthenticationError, EvidenceError, MalformedError
from sealift.ids import Digest

EXTENSION: Final = "1.2.840.113741.1.13.1"
TCB_COMPONENTS: Final = 16
Fields = dict[str, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class PlatformFacts:
    """The extension's fields.

    Attributes:
        ppid: Id of the processor package, 16 bytes.
        fmspc: Family, model, stepping, platform type: 6 bytes.
        pceid: Id of the provisioning enclave, 2 bytes.
        components: The 16 security versions that the key was made at.
        pcesvn: Security version of the provisioning enclave.
        cpusvn: 16 bytes.
        instance: Id of a multi-package platform, or None.
        smt: Whether hyper-threading was on; None if the certificate does not say.
    """

    ppid: bytes
    fmspc: bytes
    pceid: bytes
    components: tuple[int, ...]
    pcesvn: int
    cpusvn: bytes
    instance: bytes | None
    smt: bool | None


def platform_facts(certificate: Certificate) -> PlatformFacts:
    """Read the extension.

    Raises:
        MalformedError: if it is missing or does not parse.
    """
    raw = certificate.extension(EXTENSION)
    if raw is None:
        raise MalformedError(
            "the certificate is not that of a platform's key", field="PCK"
        )
    return parse_extension(raw)


def parse_extension(raw: bytes) -> PlatformFacts:
    """Parse the extension's value.

    Raises:
        MalformedError: if a field is missing, doubled or of another kind.
    """
    fields = _read_fields(read_value(raw, SEQUENCE), EXTENSION)
    tcb = _read_fields(_content(fields, "2", SEQUENCE), f"{EXTENSION}.2")
    components = tuple(_number(tcb, str(i + 1)) for i in range(TCB_COMPONENTS))
    if max(components) > 0xFF:
        raise MalformedError("a security version is above 255", field="PCK")
    return PlatformFacts(
        ppid=_octets(fields, "1", 16),
        fmspc=_octets(fields, "4", 6),
        pceid=_octets(fields, "3", 2),
        components=components,
        pcesvn=_number(tcb, "17"),
        cpusvn=_octets(tcb, "18", 16),
        instance=_octets(fields, "6", 16) if "6" in fields else None,
        smt=_smt(fields),
    )


def _read_fields(raw: bytes, prefix: str) -> Fields:
    """Pairs of OID and value, by what follows ``prefix`` in the OID."""
    found: Fields = {}
    for tag, content in read_values(raw):
        pair = read_values(content) if tag == SEQUENCE else []
        if len(pair) != 2 or pair[0][0] != OID:
            raise MalformedError("the bytes are not the fields of a PCK certificate")
        name = read_oid(pair[0][1])
        short = name.removeprefix(f"{prefix}.")
        if short == name or short in found:
            raise MalformedError(
                "a field is unknown or occurs twice", field=f"PCK {name}"
            )
        found[short] = pair[1]
    return found


def _content(fields: Fields, name: str, tag: int) -> bytes:
    found, content = fields.get(name, (0, b""))
    if found != tag:
        raise MalformedError(
            "a field is missing or has another type", field=f"PCK {name}"
        )
    return content


def _octets(fields: Fields, name: str, size: int) -> bytes:
    content = _content(fields, name, OCTET_STRING)
    if len(content) != size:
        raise MalformedError(f"a field does not have {size} bytes", field=f"PCK {name}")
    return content


def _number(fields: Fields, name: str) -> int:
    return read_number(_content(fields, name, INTEGER))


def _smt(fields: Fields) -> bool | None:
    if "7" not in fields:
        return None
    flags = _read_fields(_content(fields, "7", SEQUENCE), f"{EXTENSION}.7")
    return _content(flags, "3", BOOLEAN) == b"\xff" if "3" in flags else None


T = TypeVar("T")
LIST_SIGNER: Final = "Intel SGX TCB Signing"
_QE_FOR: Final = {"SGX": "QE", "TDX": "TD_QE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteVerdict:
    """What Intel's collateral says about the platform of a genuine quote.

    Attributes:
        platform: From the platform's certificate.
        status: One of ``tcb.STATUSES``, or ``UNKNOWN``.
        advisories: Of every part, sorted.
        evaluation: The lower tcbEvaluationDataNumber of the two lists.
        issued_s, due_s: When both lists hold, seconds since 1970.
    """

    platform: PlatformFacts
    status: str
    advisories: tuple[str, ...]
    evaluation: int
    issued_s: int
    due_s: int


def verify_quote(
    quote: TdxQuote,
    collateral: Collateral,
    *,
    at_s: int,
    roots: tuple[Digest, ...] = tuple(INTEL_SGX_ROOTS.values()),
) -> QuoteVerdict:
    """Verify every link; whether the lists are of this time is left to the caller.

    Raises:
        EvidenceError: naming the link that failed.
        MalformedError: if a part does not parse.
    """
    kind = "TDX" if isinstance(quote.body, TdReport) else "SGX"
    source = CollateralSource(collateral, kind, roots, at_s)
    platform = verify_signatures(quote, source)
    tcb = source.tcb_info(platform)
    identity = source.qe_identity()
    facts = (
        ("TCB levels (tcb-info) are for", tcb.kind, kind),
        ("TCB levels (tcb-info) are for FMSPC", tcb.fmspc.hex(), platform.fmspc.hex()),
        ("TCB levels (tcb-info) are for PCEID", tcb.pceid.hex(), platform.pceid.hex()),
        ("quoting enclave's list (qe-identity) is for", identity.kind, _QE_FOR[kind]),
    )
    wrong = [
        f"the {what} {has}; {need} is needed"
        for what, has, need in facts
        if has != need
    ]
    if wrong:
        raise EvidenceError(
            "the collateral is for another kind of platform",
            why="; ".join(wrong),
            code="collateral-foreign",
        )
    require_quoting_enclave(identity, quote.qe)
    levels = _levels(quote, tcb, identity, platform)
    whole, *parts = (each.status if each else UNKNOWN for each in levels)
    return QuoteVerdict(
        platform=platform,
        status=converge(whole, parts),
        advisories=tuple(
            sorted({name for each in levels if each for name in each.advisories})
        ),
        evaluation=min(tcb.evaluation, identity.evaluation),
        issued_s=max(tcb.issued_s, identity.issued_s),
        due_s=min(tcb.due_s, identity.due_s),
    )


@dataclass(frozen=True, slots=True)
class CollateralSource:
    """Collateral of one kind of quote (SGX, TDX), with what it is judged by."""

    collateral: Collateral
    kind: str
    roots: tuple[Digest, ...]
    at_s: int

    def item(self, name: str, variant: str = "") -> bytes:
        """An item, that of one kind of platform before the general one."""
        name = f"{self.kind.lower()}/{name}"
        special = f"{name}/{variant}"
        general = not variant or special not in self.collateral.items
        general = general and name in self.collateral.items
        return self.collateral.item(name if general or not variant else special)

    def tcb_info(self, platform: PlatformFacts) -> TcbInfo:
        """The verified TCB levels of a platform."""
        raw = self.item("tcb-info", platform.fmspc.hex())
        return self._read(raw, "tcbInfo", "tcb-info-chain", parse_tcb_info)

    def qe_identity(self) -> QeIdentity:
        """The verified identity of the quoting enclave."""
        raw = self.item("qe-identity")
        name, chain = "enclaveIdentity", "qe-identity-chain"
        return self._read(raw, name, chain, parse_qe_identity)

    def verify_chain(
        self,
        leaf: Certificate,
        others: Sequence[Certificate],
        lists: Sequence[RevocationList],
    ) -> tuple[Certificate, ...]:
        """The path to one of the roots."""
        return verify_chain(
            leaf,
            others,
            self.roots,
            at_s=self.at_s,
            revocations=Revocations(tuple(lists)),
        )

    def _read(
        self, raw: bytes, name: str, chain: str, parse: Callable[[bytes], T]
    ) -> T:
        parts = split_list(raw)
        if parts.name != name:
            raise MalformedError("the signed list has another kind", field=parts.name)
        signer, *others = certificates_from_pem(self.item(chain))
        if signer.subject_name != LIST_SIGNER:
            raise _broken(f"the signer of {name}", f"it is {signer.subject}")
        lists = (RevocationList(self.item("root-crl")),)
        path = self.verify_chain(signer, others, lists)
        if [each.subject for each in path[1:]] != [lists[0].issuer]:
            raise _broken(
                f"the signer of {name}",
                "the root did not issue its certificate directly",
            )
        _verify(signer.key(), parts.signed, parts.signature, f"Intel's {name}")
        return parse(parts.signed)


def verify_signatures(quote: TdxQuote, source: CollateralSource) -> PlatformFacts:
    """Every signature of the quote itself, up to the root; nothing of Intel's lists.

    Raises:
        EvidenceError, MalformedError: as ``verify_quote``.
    """
    _verify_quote_key(quote)
    return platform_facts(_verify_platform_key(quote, source))


def _verify_platform_key(quote: TdxQuote, source: CollateralSource) -> Certificate:
    """The platform's certificate, its chain verified with both revocation lists."""
    pck, *others = certificates_from_pem(quote.chain)
    authority = "processor" if "Processor" in pck.issuer else "platform"
    lists = [
        RevocationList(source.item("root-crl")),
        RevocationList(source.item("pck-crl", authority)),
    ]
    path = source.verify_chain(pck, others, lists)
    issuers = [each.subject for each in path[1:]]
    if issuers != [lists[1].issuer, lists[0].issuer]:
        raise EvidenceError(
            "the revocation lists do not come from the platform's issuers",
            why=f"they were issued by {lists[1].issuer} and {lists[0].issuer}, "
            f"and must be issued by {' and '.join(issuers)}",
            code="collateral-foreign",
        )
    _verify(pck.key(), quote.qe_signed, quote.qe_signature, "the quoting enclave")
    return pck


def _verify_quote_key(quote: TdxQuote) -> None:
    """The quoting enclave binds the attestation key, which signs the quote."""
    bound = sha256(quote.key, quote.qe_auth).ljust(len(quote.qe.report_data), b"\0")
    if quote.qe.report_data != bound:
        raise _broken("the attestation key", "the quoting enclave names another key")
    key = EcdsaKey("P-256", quote.key)
    _verify(key, quote.signed, quote.signature, "the quote")


def _verify(key: object, signed: bytes, signature: bytes, what: str) -> None:
    if not isinstance(key, EcdsaKey) or key.curve != "P-256":
        raise _broken(what, "its signer's key has another type")
    try:
        key.verify_raw(signed, signature, "sha256")
    except AuthenticationError:
        raise _broken(what, "its signature does not verify") from None


def _broken(what: str, why: str) -> EvidenceError:
    return EvidenceError(f"{what} is not genuine", why=why, code="quote-not-genuine")


def _levels(
    quote: TdxQuote, tcb: TcbInfo, identity: QeIdentity, platform: PlatformFacts
) -> list[TcbLevel | None]:
    """Of the platform, the quoting enclave, and a TDX module that has levels."""
    levels = [
        platform_level(tcb, platform.components, platform.pcesvn, quote.body),
        svn_level(identity.levels, quote.qe.svn),
    ]
    if isinstance(quote.body, EnclaveReport):
        return levels
    module = find_module(tcb, quote.body)
    if module.name:
        levels.append(svn_level(module.levels, quote.body.tee_tcb_svn[0]))
    return levels
