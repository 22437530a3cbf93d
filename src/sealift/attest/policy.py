"""Appraisal: evidence, references and accepted levels in, a result or a refusal out.

The order matters: a kind that could not reach an accepted level is refused before one
byte of its body is parsed. So development evidence is refused by default, whatever it
contains. A result is made here only, and development can never be affirming in one.

The room of a kind is loaded when evidence of it is examined, which is after its levels
were found to be among those that are accepted: who accepts other kinds only never runs
a line of it. This is the one place of the audited core that loads anything on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Final

from sealift.attest.collateral import Collateral
from sealift.attest.evidence import Evidence
from sealift.attest.level import Level, Tier, parse_accept, say_level
from sealift.attest.reference import AppraisalBasis, ReferenceValues
from sealift.attest.runtimelog import measured_modules
from sealift.attest.verifier import (
    AppraisalCheck,
    Claims,
    Examine,
    VerifierKind,
    check,
    require_passed,
)
from sealift.errors import EvidenceError, PolicyError, UsageError, require_value
from sealift.ids import Digest

_TEE: Final = frozenset({Level.TEE, Level.UNTRUSTED_GPU})
_HOST: Final = frozenset({Level.ATTESTED_HOST, Level.DEVELOPMENT})


def _azure() -> Examine:
    from sealift.attest.azure.verifier import examine_azure

    return examine_azure


def _development() -> Examine:
    from sealift.attest.development import examine_development

    return examine_development


def _tdx() -> Examine:
    from sealift.attest.tdx.verifier import examine_tdx

    return examine_tdx


def _tpm() -> Examine:
    from sealift.attest.tpm.verifier import examine_tpm

    return examine_tpm


def _snp() -> Examine:
    from sealift.attest.snp.verifier import examine_snp

    return examine_snp


def _nvidia() -> Examine:
    from sealift.attest.nvidia.verifier import examine_nvidia

    return examine_nvidia


def _composite() -> Examine:
    from sealift.attest.composite import examine_composite

    return partial(examine_composite, leads=_LEADS)


def _by_media_type(**kinds: VerifierKind) -> dict[str, VerifierKind]:
    return {
        f"application/vnd.sealift.{name}-evidence+json": kind
        for name, kind in kinds.items()
    }


# Whoever may lead a composite: the CPU's side, which has a runtime log.
_LEADS: Final = _by_media_type(
    azure=VerifierKind(_TEE, _azure),
    development=VerifierKind(
        frozenset({Level.DEVELOPMENT}),
        _development,
        result_media_type="application/vnd.sealift.development-result+json",
    ),
    tdx=VerifierKind(_TEE, _tdx),
    tpm=VerifierKind(_HOST, _tpm, grows=True),
    snp=VerifierKind(_TEE, _snp),
)
VERIFIER_FOR_MEDIA_TYPE: Final[Mapping[str, VerifierKind]] = MappingProxyType(
    _LEADS
    | _by_media_type(
        nvidia=VerifierKind(frozenset(), _nvidia),
        composite=VerifierKind(frozenset({Level.GPU_TEE}) | _HOST, _composite),
    )
)


class _AppraisedToken:
    """Shows that a result comes from an ``Appraiser``."""


APPRAISED: Final = _AppraisedToken()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationResult:
    """One appraised piece of evidence.

    Attributes:
        media_type: Development results have one of their own.
        claims: What the verifier found.
        evidence: Digest of the evidence body.
    """

    media_type: str
    claims: Claims
    evidence: Digest
    token: _AppraisedToken = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.token is not APPRAISED:
            raise UsageError("attestation results are made by an Appraiser only")
        if self.level is Level.DEVELOPMENT and self.tier is Tier.AFFIRMING:
            raise UsageError("development evidence can never be affirming")

    @property
    def level(self) -> Level:
        """The assurance level that was accepted."""
        return require_value(self.claims.level, "an appraiser accepts levels only")

    @property
    def standing(self) -> str:
        """The level for people: ``development (rehearsing attested-host)``."""
        return say_level(self.level, self.claims.rehearsing)

    @property
    def tier(self) -> Tier:
        """EAR's verdict: the worst claim of the trust vector."""
        return self.claims.trust.tier

    def summary(self) -> dict[str, str | None]:
        """Plain values for logs, manifests and screens."""
        bundle = self.claims.code_bundle
        return {
            "media_type": self.media_type,
            "level": self.standing,
            "tier": self.tier.value,
            "attester": self.claims.attester,
            "code_bundle": bundle.to_text() if bundle else None,
            "evidence": self.evidence.to_text(),
        }


def no_time() -> float:
    """No time at all: whatever depends on one (certificates) is refused."""
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Appraiser:
    """Everything that a decision about evidence depends on, beside the evidence.

    Attributes:
        accept: Accepted levels; ``development`` stands alone.
        references: From the agreement and the reference sets that it names.
        rehearse: With ``development``: only evidence that rehearses this level is taken.
        collateral: From this side, never from the attester (rule H13).
        clock: Seconds since 1970, to judge certificates and collateral at.
        verifiers: By media type.
    """

    accept: tuple[Level, ...]
    references: ReferenceValues = field(default_factory=ReferenceValues)
    rehearse: Level | None = None
    collateral: Collateral = field(default_factory=Collateral)
    clock: Callable[[], float] = no_time
    verifiers: Mapping[str, VerifierKind] = field(
        default_factory=lambda: VERIFIER_FOR_MEDIA_TYPE
    )

    def __post_init__(self) -> None:
        parse_accept(self.accept)

    def appraise(
        self,
        evidence: Evidence,
        bound: bytes,
        earlier: AttestationResult | None = None,
    ) -> AttestationResult:
        """Appraise one piece of evidence.

        Args:
            evidence: What the peer sent.
            bound: What it must be bound to (32 bytes, from the transcript).
            earlier: What the same peer's evidence before this one amounted to; of
                growing evidence only what is new is then expected.

        Raises:
            EvidenceError: unknown kind, not genuine, or bound to something else.
            PolicyError: a level or a value that the agreement does not accept.
            StaleError: collateral, a log or a list that is too old.
            MalformedError: evidence that does not parse.
        """
        verifier = find_verifier(evidence, self.verifiers)
        _require_level(verifier.levels, self.accept)
        claims = self.examine(evidence, bound, earlier)
        self.judge(claims)
        return AttestationResult(
            media_type=verifier.result_media_type,
            claims=claims,
            evidence=evidence.digest,
            token=APPRAISED,
        )

    def judge(self, claims: Claims) -> None:
        """Decide about what a verifier found.

        Raises:
            RefusedError: like ``appraise``.
        """
        require_passed(claims.checks)
        proven = frozenset({claims.level}) if claims.level else frozenset()
        _require_level(proven, self.accept)
        if self.rehearse is not None and claims.rehearsing is not self.rehearse:
            raise PolicyError(
                f"the evidence does not rehearse {self.rehearse}",
                why=f"it rehearses {claims.rehearsing or 'nothing'}",
                code="rehearsal-differs",
            )
        trust, lowest = claims.trust, Tier(self.references.lowest_tier)
        if claims.level is Level.ATTESTED_HOST:
            # That memory is visible to whoever holds the host is what this level says.
            trust = replace(trust, runtime_opaque=0)
        taken = {Tier.AFFIRMING, lowest}
        if claims.level is not Level.DEVELOPMENT and trust.tier not in taken:
            raise PolicyError(
                f"the evidence is not {lowest}",
                why=f"its tier is {trust.tier}; {'; '.join(claims.notes)}",
                code="tier-refused",
            )

    def examine(
        self,
        evidence: Evidence,
        bound: bytes | None,
        earlier: AttestationResult | None = None,
    ) -> Claims:
        """What the evidence's verifier finds; nothing is decided yet.

        Raises:
            EvidenceError: unknown kind, or not genuine.
            MalformedError: evidence that does not parse.
        """
        verifier = find_verifier(evidence, self.verifiers)
        basis = AppraisalBasis(
            bound=bound,
            references=self.references,
            collateral=self.collateral,
            at_s=int(self.clock()),
        )
        claims = verifier.examine(evidence, basis, earlier.claims if earlier else None)
        # Modules are compared here, once for every kind that can measure them.
        checks = (*claims.checks, *self._check_modules(claims))
        return replace(claims, level=self._standing_of(claims), checks=checks)

    def _standing_of(self, claims: Claims) -> Level | None:
        """A TEE that has servers compute, who show nothing, has a level of its own.

        Its agreement accepts no other one (rule H10; ``Agreement.servers``).
        """
        outsourced = self.accept == (Level.UNTRUSTED_GPU,)
        counts = outsourced and claims.level is Level.TEE
        return Level.UNTRUSTED_GPU if counts else claims.level

    def _check_modules(self, claims: Claims) -> Iterator[AppraisalCheck]:
        """Every module that ran is a file of the agreed bundle, unaltered."""
        files = self.references.code_files
        if files is None:
            return
        for module in measured_modules(claims.events):
            yield check(
                files.get(module.path) == module.digest,
                f"module {module.path}",
                str(files.get(module.path, "the code bundle has no such file")),
                module.digest.to_text(),
                "module-foreign",
            )


def find_verifier(
    evidence: Evidence, verifiers: Mapping[str, VerifierKind]
) -> VerifierKind:
    """The verifier that reads this evidence.

    Raises:
        EvidenceError: ``evidence-unknown-kind``.
    """
    verifier = verifiers.get(evidence.media_type)
    if verifier is None:
        raise EvidenceError(
            "the kind of evidence is unknown",
            why=f"no verifier supports {evidence.media_type}",
            code="evidence-unknown-kind",
        )
    return verifier


def _require_level(possible: frozenset[Level], accepted: tuple[Level, ...]) -> None:
    if possible & set(accepted):
        return
    if possible == {Level.DEVELOPMENT}:
        raise PolicyError(
            "development evidence was refused",
            why=f"the agreement accepts {', '.join(accepted)}",
            code="development-refused",
        )
    raise PolicyError(
        "the evidence proves a level that the agreement does not accept",
        why=f"it proves {', '.join(sorted(possible)) or 'no level by itself'}; "
        f"the agreement accepts {', '.join(accepted)}",
        code="level-refused",
    )
