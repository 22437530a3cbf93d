"""Roots of trust of hardware vendors, by SHA-256 of their key (SubjectPublicKeyInfo).

The certificates themselves come with evidence or collateral; which of them counts is
decided here, in code that the parties agree on by its digest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sealift.ids import Digest

# Intel SGX Root CA: https://certificates.trustedservices.intel.com
INTEL_SGX_ROOTS: Final[dict[str, Digest]] = {
    "Intel SGX Root CA": Digest.from_text(
        "sha256:a0af031289f5d5d4132f9186068a7fc13628633ba235777472e29b6b6c67a49e"
    ),
}

# As NVIDIA/nvtrust carries them: guest_tools/gpu_verifiers/local_gpu_verifier, certs.
NVIDIA_DEVICE_ROOTS: Final[dict[str, Digest]] = {
    "NVIDIA Device Identity CA": Digest.from_text(
        "sha256:a90c4eb5acfd3e3d03a25db6a26b84f720ad0503196c627c21ddd48dd85b06a4"
    ),
}
NVIDIA_RIM_ROOTS: Final[dict[str, Digest]] = {
    "NVIDIA CoRIM signing Root CA": Digest.from_text(
        "sha256:dec1dc316477aa851eebdf51327ae9f864bc8d89254657ed1e7eb9168af1e1a3"
    ),
}

# AMD root keys (ARK) by product: https://kdsintf.amd.com/vcek/v1/{product}/cert_chain
AMD_ARKS: Final[Mapping[str, Digest]] = {
    "Milan": Digest.from_text(
        "sha256:9f056bee44377e29308cb5ffa895bdfb62d18881fa6bed8d6f075b0204089cb9"
    ),
    "Genoa": Digest.from_text(
        "sha256:429a69c9422aa258ee4d8db5fcda9c6470ef15f8cd5a9cebd6cbc7d90b863831"
    ),
    "Turin": Digest.from_text(
        "sha256:4f125410563a2ab9a50356f9243f6fe0b6f73de98603f53f90339c70e9d7ad08"
    ),
}
