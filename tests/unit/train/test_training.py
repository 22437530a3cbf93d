"""The loop: what it depends on, and what it notices."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from sealift.data.schema.rows import demand_rows
from sealift.errors import JobError, MalformedError
from sealift.ids import Digest
from sealift.train.loop.faults import REASONS
from sealift.train.loop.states import TensorBytes, state_digest
from sealift.train.loop.tasks import SliceId
from sealift.train.sandboxed.torchstate import tensor_bytes
from sealift.train.sandboxed.training import Training
from sealift.travel.settings import TrainingSettings
from tests.unit.train.recipes import (
    LIGHTNING,
    PLAIN,
    SETTINGS,
    load,
    rows,
    schema,
    table,
)

FIRST = SliceId(0, "north", 0)


def trained(settings: TrainingSettings = SETTINGS, *slices: SliceId) -> Digest:
    training = Training(load(PLAIN), settings)
    for slice_id in slices or (FIRST,):
        training.train_slice(table(32), [slice_id])
    return state_digest(training.state().model())


def test_the_same_seed_gives_the_same_bits() -> None:
    torch.manual_seed(1)
    first = trained()
    torch.manual_seed(2)  # whatever another user of the generator drew before
    assert trained() == first


@pytest.mark.parametrize(
    "slice_id",
    [SliceId(1, "north", 0), SliceId(0, "south", 0), SliceId(0, "north", 8)],
)
def test_order_depends_on_epoch_resource_and_slice(slice_id: SliceId) -> None:
    assert trained(SETTINGS, slice_id) != trained()


def test_another_seed_gives_other_bits() -> None:
    """Control: the digest can tell runs apart."""
    assert trained(replace(SETTINGS, seed=4)) != trained()


def test_evaluation_moves_no_random_stream() -> None:
    training = Training(load(PLAIN), SETTINGS)
    for _ in range(2):
        training.train_slice(table(32), [FIRST])
        training.evaluate(rows(32, seed=2), schema())
    assert state_digest(training.state().model()) == trained(SETTINGS, FIRST, FIRST)


def test_state_holds_tensors_alone() -> None:
    method = (
        "    def get_extra_state(self):\n        return 'rows'\n\n    def training_"
    )
    text = LIGHTNING.replace("    def training_", method)
    with pytest.raises(JobError, match=re.escape(REASONS["model-state"][0])):
        Training(load(text), SETTINGS).state()


def plain(**tensors: torch.Tensor) -> dict[str, TensorBytes]:
    return {name: tensor_bytes(each) for name, each in tensors.items()}


def test_state_digest_sees_names_dtypes_shapes_and_bytes() -> None:
    state = plain(a=torch.ones(4), b=torch.zeros(0), c=torch.tensor(True))
    others = [
        state | plain(a=torch.ones(2, 2)),
        state | plain(a=torch.ones(4, dtype=torch.float64)),
        state | plain(a=torch.tensor([1.0, 1, 1, 2])),
        {("d" if name == "a" else name): each for name, each in state.items()},
    ]
    digests = {state_digest(each) for each in (state, *others)}
    assert len(digests) == 5
    assert state_digest(dict(reversed(state.items()))) == state_digest(state)


def test_rows_that_do_not_fit_are_refused_before_a_step() -> None:
    bad = rows(8)
    bad[3, 0:4] = torch.tensor([float("nan")]).view(torch.uint8)
    with pytest.raises(MalformedError) as caught:
        demand_rows(bad.numpy(), schema())
    assert caught.value.code == "bad-row"
    assert caught.value.field == "x"
    assert "3" not in str(caught.value).split("(at")[0]
