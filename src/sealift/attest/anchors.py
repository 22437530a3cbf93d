"""Roots of trust of hardware vendors, by SHA-256 of their key (SubjectPublicKeyInfo).

The certificates themselves come with evidence or collateral; which of them counts is
decided here, in code that the parties agree on by its digest.
"""

from __future__ import annotations

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
