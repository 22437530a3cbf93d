"""Reference values for a TPM: whose it is, what booted, what may run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sealift.ids import Digest

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
