"""RFC 9162 trees: known roots, a naive second implementation, every wrong proof."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from sealift.crypto import merkle
from sealift.crypto.merkle import (
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    root,
    verify_consistency,
    verify_inclusion,
)
from sealift.errors import IntegrityError, UsageError

# The eight leaves and roots of Certificate Transparency's tests, sizes 0 to 8.
ENTRIES = [
    bytes.fromhex(entry)
    for entry in (
        "", "00", "10", "2021", "3031", "40414243", "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]  # fmt: skip
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
SIZES = range(1, 65)
LEAVES = [leaf_hash(b"entry %d" % i) for i in range(64)]


def naive_root(leaves: list[bytes]) -> bytes:
    """RFC 9162 section 2.1.1, word for word, with the standard library."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256().digest()
    split = max(1 << k for k in range(len(leaves)) if 1 << k < len(leaves))
    pair = naive_root(leaves[:split]) + naive_root(leaves[split:])
    return hashlib.sha256(b"\x01" + pair).digest()


@pytest.mark.parametrize("size", range(9))
def test_certificate_transparency_roots(size: int) -> None:
    leaves = [leaf_hash(entry) for entry in ENTRIES[:size]]
    assert root(leaves).hex() == naive_root(leaves).hex() == ROOTS[size]


@pytest.mark.parametrize("size", SIZES)
def test_every_inclusion_up_to_64(size: int) -> None:
    leaves = LEAVES[:size]
    head = naive_root(leaves)
    assert root(leaves) == head
    for index, leaf in enumerate(leaves):
        proof = inclusion_proof(leaves, index)
        verify_inclusion(leaf, index, size, proof, head)
        for other in {0, index - 1, index + 1, index ^ 1, size - 1, size} - {index}:
            with pytest.raises(IntegrityError):
                verify_inclusion(leaf, other, size, proof, head)


@pytest.mark.parametrize("second", SIZES)
def test_every_consistency_up_to_64(second: int) -> None:
    head = naive_root(LEAVES[:second])
    for first in range(1, second + 1):
        proof = consistency_proof(LEAVES[:second], first)
        verify_consistency(first, second, naive_root(LEAVES[:first]), head, proof)
        rewritten = naive_root([bytes(32), *LEAVES[1:first]])
        with pytest.raises(IntegrityError) as caught:
            verify_consistency(first, second, rewritten, head, proof)
        assert caught.value.code == "log-inconsistent"


Proof = tuple[bytes, ...]
WRONG: dict[str, Callable[[Proof], Proof]] = {
    "too short": lambda proof: proof[:-1],
    "too long": lambda proof: (*proof, bytes(32)),
    "empty": lambda proof: (),
    "reversed": lambda proof: proof[::-1],
    "first changed": lambda proof: (bytes(32), *proof[1:]),
    "last changed": lambda proof: (*proof[:-1], bytes(32)),
    "cut in two": lambda proof: (proof[0][:16], proof[0][16:], *proof[1:]),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize(("size", "place"), [(2, 1), (7, 3), (8, 4), (13, 8), (64, 33)])
def test_wrong_proofs(change: Callable[[Proof], Proof], size: int, place: int) -> None:
    leaves, head = LEAVES[:size], root(LEAVES[:size])
    inclusion = inclusion_proof(leaves, place)
    if change(inclusion) != inclusion:
        with pytest.raises(IntegrityError):
            verify_inclusion(LEAVES[place], place, size, change(inclusion), head)
    consistency, past = consistency_proof(leaves, place), root(LEAVES[:place])
    if change(consistency) != consistency:
        with pytest.raises(IntegrityError):
            verify_consistency(place, size, past, head, change(consistency))


def test_a_node_is_no_leaf() -> None:
    # Without the 0x00 and 0x01 in front, an entry could pose as an inner node.
    pair = LEAVES[0] + LEAVES[1]
    assert leaf_hash(pair) != root(LEAVES[:2])


@pytest.mark.parametrize(
    ("first", "second"), [(-1, 5), (-2, -1), (5, 4), (1, 0), (0, -1)]
)
def test_no_log_shrinks_or_has_a_negative_size(first: int, second: int) -> None:
    head = root(LEAVES[:5])
    for proof in ((), (head,), (head, head, head)):
        with pytest.raises(IntegrityError, match="shrank"):
            verify_consistency(first, second, head, head, proof)


def test_empty_and_equal_logs() -> None:
    head, other = root(LEAVES[:5]), root(LEAVES[:4])
    verify_consistency(0, 5, root([]), head, ())
    verify_consistency(5, 5, head, head, ())
    for first, first_root, proof in [(0, head, (head,)), (5, head, (head,)), (5, other, ())]:  # fmt: skip
        with pytest.raises(IntegrityError):
            verify_consistency(first, 5, first_root, head, proof)


@pytest.mark.parametrize("index", [-1, 0, 5])
def test_no_proof_of_what_is_not_there(index: int) -> None:
    leaves = LEAVES[:5] if index else []
    with pytest.raises(UsageError):
        inclusion_proof(leaves, index)
    with pytest.raises(UsageError):
        consistency_proof(LEAVES[:4], index)
    with pytest.raises(IntegrityError):
        verify_inclusion(LEAVES[0], index, len(leaves), (), LEAVES[0])


def test_only_a_failed_comparison_is_an_inconsistent_log() -> None:
    with pytest.raises(TypeError):
        merkle._require_equal(b"x", None, "a bug of ours")  # type: ignore[arg-type]
