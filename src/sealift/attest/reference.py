"""Reference values (RFC 9334): what the parties agreed that evidence must show.

They come from the signed agreement, or from sets that it names, never
from the peer. Each kind of evidence reads the field that concerns it; a kind whose field
is empty accepts nothing. ``AppraisalBasis`` is all that evidence is judged by, beside itself.
Source: spec/evidence.md.

A set is a signed, versioned file: lists of what may run on a host are long and change with
every update, so an agreement can name a set by its name, its signer and the lowest number
it takes. A number never goes back (rule H13 for what endorses, here for what is expected).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, Literal, TypeVar

from sealift.attest.collateral import DAY_S, Collateral
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

T = TypeVar("T")
Operator = Literal["hardware", "virtual", "software"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmRoot:
    """A root of endorsement key certificates.

    Attributes:
        name: For people, and in the result manifest.
        key: SHA-256 of its SubjectPublicKeyInfo.
        operator: ``hardware`` for a chip's vendor; ``virtual`` for a cloud's TPM, whose
            operator joins the trusted base; ``software`` (swtpm) only rehearses.
    """

    name: str
    key: Digest
    operator: Operator


@dataclass(frozen=True, slots=True, kw_only=True)
class ImaReferences:
    """What may have been executed, mapped or loaded, and what must have been.

    Attributes:
        allow: Accepted SHA-256 digests of file contents, by path.
        must: Paths that the list must name (interpreter, policy, agent): a kernel that
            measures nothing satisfies every ``allow`` (rule N8). Without any, no list
            is enough.
        signers: SubjectPublicKeyInfo (DER) of keys whose file signatures are accepted.
        max_lag: List entries that may be newer than the quote.
    """

    allow: dict[str, tuple[Digest, ...]]
    must: tuple[str, ...] = ()
    signers: tuple[bytes, ...] = ()
    max_lag: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmReferences:
    """What a TPM's evidence must show.

    Attributes:
        roots: Accepted roots of endorsement key certificates.
        endorsement_keys: SHA-256 of the SubjectPublicKeyInfo of the accepted hosts'
            endorsement keys (a clean machine elsewhere must not answer: rule M7).
        bank: The PCR bank that is compared and replayed.
        pcrs: Accepted values by PCR number (decimal). 0, 2, 4, 7, 8 and 9 must be there:
            an unknown boot may measure nothing. 12 and 13 must be untouched where they
            are not there.
        register: PCR of the runtime log; not 16 or 20 to 23, which software can reset.
        ima: What may and must run; None accepts no host.
        revocation: ``none`` takes certificates that name nobody who would tell that
            they were revoked. Where one names a list or an OCSP responder, what that
            says must be at hand in any case.
    """

    roots: tuple[TpmRoot, ...]
    endorsement_keys: tuple[Digest, ...]
    bank: Literal["sha256", "sha384"] = "sha256"
    pcrs: dict[str, tuple[bytes, ...]]
    register: int = 15
    ima: ImaReferences | None = None
    revocation: Literal["required", "none"] = "required"


TdxFeature = Literal[
    "avx", "avx-512", "processor-trace", "protection-keys", "cet", "user-interrupts",
    "lbr", "amx",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TdxReferences:
    """What a TD quote must show; a register without accepted value is refused.

    Attributes:
        mrtd: Accepted build-time measurements (48 bytes each).
        rtmr: Accepted values of RTMR 0 to 2, by number (decimal).
        mrconfigid: Accepted values (48 bytes); 48 zeros if none was configured.
        mrservicetd: Accepted digests of bound service TDs (48 bytes); 48 zeros if none.
        sept_ve_disable: Whether the host must be unable to make the guest fault on
            memory that it accepted (TD attribute SEPT_VE_DISABLE).
        tcb_statuses: Accepted TCB statuses of Intel's list.
        min_tcb_evaluation: Lowest tcbEvaluationDataNumber of the collateral.
        platforms: Accepted PPIDs (16 bytes), or empty for any.
        features: Extended features of the processor (XFAM) that the guest may use, or
            None for any that the TDX module allows.
    """

    mrtd: tuple[bytes, ...]
    rtmr: dict[str, tuple[bytes, ...]]
    mrconfigid: tuple[bytes, ...]
    mrservicetd: tuple[bytes, ...] = (bytes(48),)
    sept_ve_disable: bool = True
    tcb_statuses: tuple[str, ...] = ("UpToDate",)
    min_tcb_evaluation: int = 0
    platforms: tuple[bytes, ...] = ()
    features: tuple[TdxFeature, ...] | None = None


_TCB_FIELDS: Final = frozenset({"fmc", "boot_loader", "tee", "snp", "microcode"})

PlatformFact = Literal[
    "smt-off", "ciphertext-hiding", "rapl-off", "alias-check", "single-socket"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnpReferences:
    """What an attestation report must show.

    Attributes:
        measurement: Accepted launch digests (48 bytes each).
        host_data: Accepted values (32 bytes each).
        host_data_names_code: Whether HOST_DATA is the digest of the code bundle, which
            the measured image compares before it runs it. Then ``host_data`` is not
            read: HOST_DATA must be the agreement's code bundle.
        max_vmpl: Highest (least privileged) VMPL that may ask.
        min_tcb: Lowest security versions by field (``fmc``, ``boot_loader``, ``tee``,
            ``snp``, ``microcode``), by product (``Milan``, ``Genoa``, ``Turin``); a
            product without is refused, a field without is not compared.
        chips: Accepted CHIP_IDs (64 bytes), or empty for any.
        operators: Names (CSP ids) of those whose loaded keys (VLEK) are accepted;
            empty accepts chips' own keys (VCEK) only.
        platform: Facts about the host that must hold.
        revocation: Whether AMD's revocation list must be at hand; ``waived`` accepts
            keys without looking.
    """

    measurement: tuple[bytes, ...]
    host_data: tuple[bytes, ...]
    host_data_names_code: bool = False
    max_vmpl: int = 0
    min_tcb: dict[str, dict[str, int]]
    chips: tuple[bytes, ...] = ()
    operators: tuple[str, ...] = ()
    platform: tuple[PlatformFact, ...] = ()
    revocation: Literal["required", "waived"] = "required"

    def __post_init__(self) -> None:
        for product, floor in self.min_tcb.items():
            if unknown := sorted(floor.keys() - _TCB_FIELDS):
                raise MalformedError(
                    f"the security version {unknown[0]} is unknown",
                    field=f"min_tcb.{product}",
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaReferences:
    """What a device report must show, beside the golden values of its signed RIMs.

    Attributes:
        drivers: Accepted driver versions.
        vbios: Accepted VBIOS versions, of GPUs and of switches.
        modes: Accepted feature modes (``spt``, ``mpt``, ``ppcie``; ``unstated`` for
            firmware that does not say).
        devices: Accepted device ids, or empty for any.
        revocation: Whether every certificate that names a place for its revocation
            state must be looked up (``required``), or only what the collateral has.
    """

    drivers: tuple[str, ...]
    vbios: tuple[str, ...]
    modes: tuple[str, ...] = ("spt",)
    devices: tuple[str, ...] = ()
    revocation: Literal["required", "if-known"] = "required"


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
class AppraisalBasis:
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


def require_references(values: T | None, kind: str) -> T:
    """The reference values that the agreement has for a kind.

    Raises:
        PolicyError: ``references-missing``.
    """
    if values is None:
        raise PolicyError(
            f"there are no reference values for {kind}",
            why="an agreement or a signed reference set has them, and without them evidence of "
            "this kind cannot be accepted",
            code="references-missing",
        )
    return values


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
