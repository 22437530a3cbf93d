"""The loop: what it depends on, and what it notices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sealift.data.loader import check_rows
from sealift.errors import JobError, MalformedError
from sealift.ids import Digest
from sealift.train.statedigest import state_digest
from sealift.train.training import LoopSettings, SliceId, Training
from tests.unit.train.recipes import LIGHTNING, PLAIN, SETTINGS, load, rows, schema

FIRST = SliceId(0, "north", 0)


def trained(settings: LoopSettings = SETTINGS, *slices: SliceId) -> Digest:
    training = Training(load(PLAIN), settings)
    for slice_id in slices or (FIRST,):
        training.train_slice(rows(32), schema(), slice_id)
        training.settle()
    return training.digest()


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
        training.train_slice(rows(32), schema(), FIRST)
        training.evaluate(rows(32, seed=2), schema())
    assert training.digest() == trained(SETTINGS, FIRST, FIRST)


def test_a_state_that_stays_is_verified() -> None:
    training = Training(load(PLAIN), SETTINGS)
    training.verify_settled()
    training.train_slice(rows(32), schema(), FIRST)
    training.settle()
    training.verify_settled()


def change_weight(training: Training) -> None:
    next(training.model.parameters()).data.view(-1)[0] += 1e-6


def change_optimizer(training: Training) -> None:
    parameter = next(training.model.parameters())
    training.optimizer.state[parameter]["exp_avg"].view(-1)[0] += 1e-6


def change_rate(training: Training) -> None:
    training.optimizer.param_groups[0]["lr"] *= 2


@pytest.mark.parametrize("change", [change_weight, change_optimizer, change_rate])
def test_a_change_between_slices_is_noticed(change) -> None:  # type: ignore[no-untyped-def]
    training = Training(load(PLAIN), SETTINGS)
    training.train_slice(rows(32), schema(), FIRST)
    training.settle()
    change(training)
    with pytest.raises(JobError) as caught:
        training.verify_settled()
    assert caught.value.code == "state-changed"


def test_settling_overwrites_gradients() -> None:
    training = Training(load(PLAIN), SETTINGS)
    training.train_slice(rows(32), schema(), FIRST)
    parameter = next(training.model.parameters())
    assert parameter.grad.count_nonzero() > 0
    training.settle()
    assert parameter.grad.count_nonzero() == 0


def test_state_holds_tensors_alone() -> None:
    method = (
        "    def get_extra_state(self):\n        return 'rows'\n\n    def training_"
    )
    text = LIGHTNING.replace("    def training_", method)
    with pytest.raises(JobError, match="something else than tensors"):
        Training(load(text), SETTINGS).state()


def test_state_digest_sees_names_dtypes_shapes_and_bytes() -> None:
    state = {"a": torch.ones(4), "b": torch.zeros(0), "c": torch.tensor(True)}
    others = [
        {**state, "a": torch.ones(2, 2)},
        {**state, "a": torch.ones(4, dtype=torch.float64)},
        {**state, "a": torch.tensor([1.0, 1, 1, 2])},
        {("d" if name == "a" else name): each for name, each in state.items()},
    ]
    digests = {state_digest(each) for each in (state, *others)}
    assert len(digests) == 5
    assert state_digest(dict(reversed(state.items()))) == state_digest(state)


def test_rows_that_do_not_fit_are_refused_before_a_step() -> None:
    bad = rows(8)
    bad[3, 0:4] = torch.tensor([float("nan")]).view(torch.uint8)
    with pytest.raises(MalformedError) as caught:
        check_rows(bad, schema())
    assert caught.value.code == "bad-row"
    assert caught.value.field == "x"
    assert "3" not in str(caught.value).split("(at")[0]
