"""Every kind of verifier, by the media type of what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sealift.attest.verifier import Verifier
from sealift.attest.verifiers.azure import AzureVerifier
from sealift.attest.verifiers.composite import CompositeVerifier
from sealift.attest.verifiers.development import DevelopmentVerifier
from sealift.attest.verifiers.nvidia import NvidiaVerifier
from sealift.attest.verifiers.snp import SnpVerifier
from sealift.attest.verifiers.tdx import TdxVerifier
from sealift.attest.verifiers.tpm import TpmVerifier

# Whoever may lead a composite: the CPU's side, which has a runtime log.
_LEADS: Final[tuple[Verifier, ...]] = (
    AzureVerifier(),
    DevelopmentVerifier(),
    TdxVerifier(),
    TpmVerifier(),
    SnpVerifier(),
)
_VERIFIERS: Final[tuple[Verifier, ...]] = (
    *_LEADS,
    NvidiaVerifier(),
    CompositeVerifier({verifier.media_type: verifier for verifier in _LEADS}),
)

VERIFIER_FOR_MEDIA_TYPE: Final[Mapping[str, Verifier]] = MappingProxyType(
    {verifier.media_type: verifier for verifier in _VERIFIERS}
)
