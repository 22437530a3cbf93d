"""Every kind of verifier, by the media type of what it reads.

The room of a kind is loaded when evidence of it is examined, which is after its levels
were found to be among those that are accepted: who accepts other kinds only never runs
a line of it. This is the one place of the audited core that loads anything on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from sealift.attest.evidence import Evidence
from sealift.attest.level import Level
from sealift.attest.reference import Basis
from sealift.attest.verifier import EAT, Claims, ContinuingVerifier, Verifier

_TEE: Final = frozenset({Level.TEE})
_HOST: Final = frozenset({Level.ATTESTED_HOST, Level.DEVELOPMENT})


@dataclass(frozen=True, slots=True)
class Kind:
    """A verifier that is not loaded yet.

    Attributes:
        media_type: The format that it parses.
        levels: Every level that it could support.
        load: Loads its room.
        result_media_type: How its results are marked.
    """

    media_type: str
    levels: frozenset[Level]
    load: Callable[[], Verifier]
    result_media_type: str = EAT

    def examine(self, evidence: Evidence, basis: Basis) -> Claims:
        """See ``Verifier.examine``."""
        return self.load().examine(evidence, basis)


@dataclass(frozen=True, slots=True)
class GrowingKind(Kind):
    """One of growing evidence."""

    def examine_continued(
        self, evidence: Evidence, basis: Basis, *, earlier: Claims
    ) -> Claims:
        """See ``ContinuingVerifier.examine_continued``."""
        verifier = self.load()
        assert isinstance(verifier, ContinuingVerifier)
        return verifier.examine_continued(evidence, basis, earlier=earlier)


def _azure() -> Verifier:
    from sealift.attest.azure.verifier import AzureVerifier

    return AzureVerifier()


def _development() -> Verifier:
    from sealift.attest.development import DevelopmentVerifier

    return DevelopmentVerifier()


def _tdx() -> Verifier:
    from sealift.attest.tdx.verifier import TdxVerifier

    return TdxVerifier()


def _tpm() -> Verifier:
    from sealift.attest.tpm.verifier import TpmVerifier

    return TpmVerifier()


def _snp() -> Verifier:
    from sealift.attest.snp.verifier import SnpVerifier

    return SnpVerifier()


def _nvidia() -> Verifier:
    from sealift.attest.nvidia.verifier import NvidiaVerifier

    return NvidiaVerifier()


def _composite() -> Verifier:
    from sealift.attest.composite import CompositeVerifier

    return CompositeVerifier({kind.media_type: kind for kind in _LEADS})


# Whoever may lead a composite: the CPU's side, which has a runtime log.
_LEADS: Final = (
    Kind("application/vnd.sealift.azure-evidence+json", _TEE, _azure),
    Kind(
        "application/vnd.sealift.development-evidence+json",
        frozenset({Level.DEVELOPMENT}),
        _development,
        "application/vnd.sealift.development-result+json",
    ),
    Kind("application/vnd.sealift.tdx-evidence+json", _TEE, _tdx),
    GrowingKind("application/vnd.sealift.tpm-evidence+json", _HOST, _tpm),
    Kind("application/vnd.sealift.snp-evidence+json", _TEE, _snp),
)
_KINDS: Final = (
    *_LEADS,
    Kind("application/vnd.sealift.nvidia-evidence+json", frozenset(), _nvidia),
    Kind(
        "application/vnd.sealift.composite-evidence+json",
        frozenset({Level.GPU_TEE}) | _HOST,
        _composite,
    ),
)

VERIFIER_FOR_MEDIA_TYPE: Final[Mapping[str, Verifier]] = MappingProxyType(
    {kind.media_type: kind for kind in _KINDS}
)
