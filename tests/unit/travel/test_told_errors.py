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
from sealift.travel.peers import call_by_person
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accelerator-1 is gone", "rank 1 is gone"),
        ("gone: accelerator-1.", "gone: rank 1."),
        ("/srv/accelerator-1/job.toml", "/srv/accelerator-1/job.toml"),
        ("accelerator-1/job.toml", "accelerator-1/job.toml"),
        (
            "my-accelerator-1 and accelerator-1-b",
            "my-accelerator-1 and accelerator-1-b",
        ),
    ],
)
def test_accelerators_are_called_by_people_and_paths_stay_as_they_are(
    text: str, said: str
) -> None:
    assert call_by_person(text, {"accelerator-1": "rank 1"}) == said
