"""IMA lists of real machines: rebuilt to what their kernels hashed."""

from __future__ import annotations

import pytest

from sealift.attest.reference import ImaReferences
from sealift.attest.tpm.ima import ImaState, advance, parse_list, replay
from sealift.errors import MalformedError
from sealift.ids import Digest
from tests.sim.vectors import vector

pytestmark = pytest.mark.vectors
REAL = "ima/rust-keylime_ascii_runtime_measurements"


def test_real_list_is_rebuilt() -> None:
    """Parsing compares each entry with the SHA-1 that the kernel recorded."""
    found = parse_list(vector(REAL))
    assert len(found) == 826
    assert not found.violations
    paths = [found.entry(number).path for number in range(len(found))]
    assert paths[:3] == ["boot_aggregate", "/init", "/bin/sh"]


def test_each_changed_entry_of_a_real_list_is_refused() -> None:
    lines = vector(REAL).splitlines()
    for number in range(0, len(lines), 25):
        words = lines[number].split(b" ")
        words[3] = words[3][:-1] + (b"0" if words[3][-1:] != b"0" else b"1")
        with pytest.raises(MalformedError):
            parse_list(b" ".join(words))


def test_real_list_replays_in_any_bank_and_is_judged() -> None:
    """Its files have SHA-1 digests: no allow-list can take them."""
    found = parse_list(vector(REAL))
    quoted = replay(found, bytes(32), bank="sha256")
    allow = {found.entry(n).path: (Digest(bytes(32)),) for n in range(len(found))}
    must = (found.entry(1).path,)
    references = ImaReferences(allow=allow, must=must)
    state, checks = advance(ImaState.at_boot("sha256"), found, quoted, references)
    assert state == ImaState(826, quoted, frozenset(must))
    codes = {each.code for each in checks if not each.passed}
    assert codes == {"ima-boot-aggregate", "ima-entry-unlisted"}


@pytest.mark.parametrize("name", ["sha1", "sha256", "sha384", "sha512"])
def test_lists_of_each_hash(name: str) -> None:
    found = parse_list(vector(f"ima/keylime_ima-log-{name}"))
    entries = [found.entry(number) for number in range(len(found))]
    assert [each.path for each in entries] == ["boot_aggregate", "/data"]
    assert {each.algorithm for each in entries} == {name}
    assert found.violations == (set() if name == "sha256" else {0})
