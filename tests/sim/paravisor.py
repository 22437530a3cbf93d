"""A stand-in for Azure's paravisor: it fills a software TPM as Azure fills its own.

The chip under it is made too. No Azure guest was at hand: what only a real one can show
(timing, the host's service) is not shown here.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from sealift.attest.azure.attester import ATTESTATION_KEY, HCL_REPORT, USER_DATA
from sealift.attest.tpm.client import PASSWORD, TpmClient, open_link
from sealift.attest.tpm.keys import (
    OWNER,
    create_primary,
    read_index,
    remove_index,
    write_index,
)
from sealift.crypto.hash import sha256
from sealift.crypto.vendorkeys import RsaKey
from tests.sim import azure_made, snp_made
from tests.sim.swtpm import SoftwareTpm, TestCommand, run_command

# Restricted RSA signing key, RSASSA with SHA-256: as Azure's attestation keys are.
_TEMPLATE = bytes.fromhex("0001 000b 00050072 0000 0010 0014 000b 0800 00000000 0000")


@dataclass
class Paravisor:
    """Fills the virtual TPM, and renews its report after user data was written."""

    key: RsaKey
    kind: int = 2
    asked: int = 0

    def certificates(self) -> tuple[bytes, ...]:
        self.asked += 1
        authority = snp_made.authority("Milan")
        return (self.signer.certificate, authority.der("ask"), authority.der("ark"))

    def td_quote(self, report: bytes) -> bytes:
        self.asked += 1
        return b"quote of " + report[:4]

    def __post_init__(self) -> None:
        self.signer = snp_made.vcek("Milan")

    def write_report(self, client: TpmClient, user_data: bytes) -> None:
        n = self.key.modulus.to_bytes(256)
        text = azure_made.claims_text(**{
            "keys": [{"kid": "HCLAkPub", "kty": "RSA", "e": "AQAB",
                      "n": azure_made.text_of(int.from_bytes(n))}],
            "user-data": user_data.hex(),
        })  # fmt: skip
        raw = self.signer.sign(snp_made.report(report_data=sha256(text)))
        report = azure_made.pack_hcl(raw, text, kind=self.kind).rstrip(b"\0")
        if read_index(client, HCL_REPORT) is not None:
            remove_index(client, HCL_REPORT)
        write_index(client, HCL_REPORT, report)

    def renew(self, client: TpmClient) -> None:
        written = read_index(client, USER_DATA, owner=True)
        assert written is not None
        self.write_report(client, written)


@contextlib.contextmanager
def setting_up(tpm: SoftwareTpm) -> Iterator[TpmClient]:
    client = TpmClient(open_link(tpm.name))
    client.begin()
    try:
        yield client
    finally:
        client.close()


def move_in(tpm: SoftwareTpm) -> Paravisor:
    """Puts key and report in their places."""
    with setting_up(tpm) as client:
        key = create_primary(client, OWNER, _TEMPLATE)
        run_command(
            client,
            TestCommand.EVICT_CONTROL,
            (OWNER, key.handle),
            struct.pack(">I", ATTESTATION_KEY),
            sessions=(PASSWORD,),
        )
        assert isinstance(key.public.key, RsaKey)
        made = Paravisor(key.public.key)
        made.write_report(client, bytes(64))
    return made
