"""What an accelerator tells of a failure is said again: its name, its exit, its line once."""

from __future__ import annotations

import pytest

from sealift.errors import (
    IntegrityError,
    JobError,
    MalformedError,
    PeerError,
    PolicyError,
    RefusedError,
    SealiftError,
    UnavailableError,
)
from sealift.travel.visit.errors import job_failed, named_errors
from sealift.travel.visit.messages import Failed, FailedError

TOLD = [
    PeerError("M (cloud-b) is gone", why="it was", code="server-gone"),
    PeerError("M is gone", fix="Its log says more", code="server-gone"),
    RefusedError("M refuses the job", code="server-refuses"),
    IntegrityError("M (cloud-b) sent a wrong answer", code="wrong-product"),
    IntegrityError("a product left the modulus", code="product-wrapped"),
    MalformedError("M sent no share", code="bad-share"),
    PolicyError("M is another", code="identity-differs"),
    PolicyError("not apart", why="P and M are one", code="servers-not-apart"),
    UnavailableError("no memory for a step", fix="Ask for less", code="no-memory"),
    JobError("x of fc is not finite", code="operand-not-finite"),
    JobError("more products", code="other-operations"),
]


@pytest.mark.parametrize("error", TOLD, ids=lambda error: error.code)
def test_a_job_ends_by_the_name_and_exit_that_were_told(error: SealiftError) -> None:
    failed = Failed(error.code, str(error))
    with pytest.raises(SealiftError) as caught, named_errors():
        raise FailedError(failed)
    begun, under_way = caught.value, job_failed(failed.code, failed.line)
    for said in (begun, under_way):
        assert (type(said), said.code) == (type(error), error.code)
    assert str(begun) == str(error)
    assert str(under_way) == f"the job failed: {error}"
