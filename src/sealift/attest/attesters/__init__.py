"""Every kind of attester, by the media type of what it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from sealift.attest.attester import Attester
from sealift.attest.attesters.azure import AzureAttester
from sealift.attest.attesters.composite import CompositeAttester
from sealift.attest.attesters.development import DevelopmentAttester
from sealift.attest.attesters.nvidia import NvidiaAttester
from sealift.attest.attesters.snp import SnpAttester
from sealift.attest.attesters.tdx import TdxAttester
from sealift.attest.attesters.tpm import TpmAttester
from sealift.attest.azure import MEDIA_TYPE as AZURE
from sealift.attest.composite import MEDIA_TYPE as COMPOSITE
from sealift.attest.development import MEDIA_TYPE as DEVELOPMENT
from sealift.attest.nvidia import MEDIA_TYPE as NVIDIA
from sealift.attest.snp import MEDIA_TYPE as SNP
from sealift.attest.tdx import MEDIA_TYPE as TDX
from sealift.attest.tpm import MEDIA_TYPE as TPM

ATTESTER_FOR_MEDIA_TYPE: Final[Mapping[str, Callable[..., Attester]]] = (
    MappingProxyType(
        {
            AZURE: AzureAttester,
            COMPOSITE: CompositeAttester,
            DEVELOPMENT: DevelopmentAttester,
            NVIDIA: NvidiaAttester,
            SNP: SnpAttester,
            TDX: TdxAttester,
            TPM: TpmAttester,
        }
    )
)
