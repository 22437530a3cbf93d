"""What is kept of a wrong answer, and which jobs can be started again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from sealift.crypto.sign import SigningKey
from sealift.data.schedule.visits import BufferChoice
from sealift.errors import AuthenticationError, IntegrityError, UsageError
from sealift.events import Event
from sealift.numeric.kernels import SMALL_DEPTH
from sealift.outsource.compute import ShareProducts
from sealift.outsource.masked import MaskedProducts
from sealift.outsource.terms import Forward, Layer
from sealift.outsource.trace import StepKind, Trace, tabulate
from sealift.train.job.shareservers import ShareServers, WrongRecord, demand_lasting
from sealift.travel.settings import JobSettings, TravelSettings
from tests.sim.servedshares import KERNELS, SharesWorld
from tests.unit.train.joints import resource

# Deeper than what servers multiply in one piece, without the products that lie below.
LAYER = Layer(name="fc", batch=2, inputs=SMALL_DEPTH + 1, outputs=4)
TRACE: Trace = (Forward(LAYER),)
KIND = StepKind("evaluate", 2)


class Lying(ShareProducts):
    def make(self, *args: Any, **more: Any) -> Iterator[int]:
        yield from super().make(*args, **more)
        args[-1][0] ^= 1


@pytest.mark.parametrize("kept", [True, False])
def test_what_a_wrong_server_signed_is_kept(tmp_path: Path, kept: bool) -> None:
    world, events = SharesWorld(), list[Event]()
    world.servers["M"].products = Lying("cpu", KERNELS)
    shares = ShareServers(
        *[cast("Any", None)] * 2, events.append, tmp_path if kept else None
    )
    with world.serving(), world.dial() as servers:
        servers.announce(tabulate({KIND: TRACE}))
        products = MaskedProducts(servers, KERNELS)
        shares._servers, shares._products = servers, products
        products.begin(KIND, 5)
        x, w = (np.ones(LAYER.shape(each), np.int16) for each in ("x", "w"))
        products.forward(Forward(LAYER), x, w, 1.0)
        with pytest.raises(IntegrityError, match="cloud-b") as caught:
            products.settle()
        shares._tell(caught.value)
        record = WrongRecord.of(products.wrong[0], servers.signed)
    (signed,) = record.signed
    signed.verify(world.identities["M"].public_key)
    with pytest.raises(AuthenticationError):
        signed.verify(SigningKey.generate().public_key)
    assert (signed.body.share, signed.body.step) == ("M", 5)
    (event,) = events
    assert event.fields["servers"] == "M (cloud-b)"
    files = list(tmp_path.iterdir())
    assert [str(each) for each in files] == ([event.fields["kept"]] if kept else [])
    for each in files:
        assert WrongRecord.load(each) == record


def test_visits_are_as_long_after_a_restart() -> None:
    resources = [resource("north", 8), resource("east", 9)]
    short, whole = (
        BufferChoice(rows * resources[0].row_bytes, "half of the memory")
        for rows in (8, 9)
    )
    with pytest.raises(UsageError) as caught:
        demand_lasting(short, JobSettings(), resources)
    assert caught.value.code == "buffer-unsaid"
    demand_lasting(whole, JobSettings(), resources)
    said = JobSettings(travel=TravelSettings(buffer_bytes=short.buffer_bytes))
    demand_lasting(short, said, resources)
