"""Whatever stands in a certificate's extensions, no exception of the library gets out."""

from __future__ import annotations

import contextlib

import pytest
from cryptography import x509
from hypothesis import given

from sealift.attest.nvidia.verifier import certified_firmware_id
from sealift.attest.snp.endorsement import parse_endorsement
from sealift.attest.tdx.platform import platform_facts
from sealift.attest.tools.collateral import item_times, to_items
from sealift.attest.tpm.enrolment import says_software
from sealift.crypto.certificate import Certificate, read_certificate
from sealift.crypto.chain import verify_chain
from sealift.errors import MalformedError, SealiftError
from tests.sim import odd_certificates as odd
from tests.sim.examples import examples

AT_S = 1_750_000_000
PLAIN = odd.certificate(
    "plain", odd.extension("2.5.29.19", bytes.fromhex("30030101ff"))
)
DOORS = (
    lambda found: found.is_ca,
    lambda found: found.path_length,
    lambda found: found.signs_lists,
    lambda found: found.critical,
    lambda found: found.names_revocation,
    lambda found: found.subject_name,
    lambda found: [found.extension(each) for each in odd.STANDARD + odd.VENDORS],
    lambda found: found.directory_names(),
    lambda found: found.key(),
    lambda found: found.is_issued_by(found),
    lambda found: verify_chain(found, [], [found.spki_digest], at_s=AT_S),
    parse_endorsement,
    platform_facts,
    certified_firmware_id,
    says_software,
    lambda found: to_items(found.der),
    lambda found: item_times(found.der),
)


@pytest.mark.parametrize("case", odd.FOREIGN)
def test_what_the_library_answers_in_types_of_its_own_is_malformed(case: str) -> None:
    name, value = odd.FOREIGN[case]
    raw = odd.certificate("SEV-VCEK", odd.extension(name, bytes.fromhex(value)))
    with pytest.raises(Exception, match=r".*") as caught:  # control: it does raise
        _ = x509.load_der_x509_certificate(raw).extensions
    assert not isinstance(caught.value, ValueError)
    with pytest.raises(MalformedError, match="not a certificate"):
        read_certificate(raw)


def test_a_plain_one_of_the_same_maker_is_read() -> None:
    found = read_certificate(PLAIN)
    assert verify_chain(found, [], [found.spki_digest], at_s=AT_S) == (found,)
    assert found.is_ca
    for door in DOORS:
        with contextlib.suppress(SealiftError):
            door(found)


@given(odd.odd_certificates())
@examples(400)
def test_odd_extensions_are_read_or_refused(raw: bytes) -> None:
    try:
        found = Certificate(raw)
    except MalformedError:
        return
    for door in DOORS:
        with contextlib.suppress(SealiftError):
            door(found)
