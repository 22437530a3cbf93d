"""`sealift.link`: what both ends of a fed device do, in one process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from sealift.errors import PeerError, UsageError
from tests.sim.linked import FORM, LinkedParties, Other, linked


def batch(number: int) -> dict[str, np.ndarray]:
    x = np.arange(12, dtype=np.float32).reshape(4, 3) + number
    return {"x": x, "y": np.full(4, number, dtype=np.int64)}


@pytest.fixture
def parties(tmp_path: Path) -> LinkedParties:
    return LinkedParties(tmp_path)


def test_batches_arrive_whole_and_in_order(parties: LinkedParties) -> None:
    with linked(parties) as (sender, receiver):
        assert sender.seen.level == "development"
        assert receiver.owner == "north"
        assert "host" in receiver.opened_by
        got = Other(lambda: list(receiver))
        with sender:
            sender.send(batch(0))
            assert sender.send_ahead(batch(n) for n in range(1, 20)) == 19
            tensors = {name: torch.from_numpy(a) for name, a in batch(20).items()}
            sender.send(tensors)
            assert sender.num_sent == 21
        found = got.join()
        assert receiver.num_received == len(found) == 21
        for number, each in enumerate(found):  # also the first: nothing is reused
            for name, array in batch(number).items():
                assert each[name].dtype == getattr(torch, FORM[name][0])
                assert np.array_equal(each[name].numpy(), array)
        assert receiver.receive() is None
    assert not parties.path.exists()
