"""Evidence of a TPM 2.0, through a client of our own: no library, no daemon."""

from sealift.attest.attesters.tpm.attester import TpmAttester, TpmSources

__all__ = ["TpmAttester", "TpmSources"]
