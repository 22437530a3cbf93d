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
