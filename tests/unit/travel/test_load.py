"""What a loader takes for leaves."""

from __future__ import annotations

import pytest

from sealift.channel.record.commitment import LEAF_BYTES
from sealift.errors import IntegrityError
from sealift.travel.accelerator.visit import split_leaves
from sealift.travel.visit.messages import LEAVES_PER_MESSAGE


@pytest.mark.parametrize("count", [1, 2, LEAVES_PER_MESSAGE])
def test_leaves_come_one_after_the_other(count: int) -> None:
    leaves = [index.to_bytes(LEAF_BYTES, "big") for index in range(count)]
    assert split_leaves(b"".join(leaves)) == leaves


@pytest.mark.parametrize(
    "length", [0, 1, LEAF_BYTES - 1, LEAF_BYTES + 1, (LEAVES_PER_MESSAGE + 1) * 32]
)
def test_no_leaves_parts_of_one_and_too_many_are_refused(length: int) -> None:
    with pytest.raises(IntegrityError) as caught:
        split_leaves(bytes(length))
    assert caught.value.code == "content-mismatch"
