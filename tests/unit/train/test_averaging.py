"""The mean of several slices' states, against arithmetic by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sealift.errors import JobError
from sealift.train.loop.averaging import Contribution, mean_state
from sealift.train.loop.held import Held
from sealift.train.loop.states import (
    FEW_NUMBERS,
    TensorBytes,
    TrainingState,
    pack_tensors,
    parse_tensors,
)

KINDS = {"F32": np.float32, "F64": np.float64, "F16": np.float16, "I64": np.int64}


def state(step: int = 0, tree: bytes = b"{}", **tensors: Any) -> TrainingState:
    """Tensors by ``KIND_name``; of the model unless the name begins with ``o``."""
    packed = {}
    for key, values in tensors.items():
        dtype, _, name = key.partition("_")
        raw = np.asarray(values, KINDS[dtype]) if dtype in KINDS else values
        place = ("optimizer/" if name.startswith("o") else "model/") + name
        packed[place] = TensorBytes(dtype, raw.shape, memoryview(raw.tobytes()))
    return TrainingState(step, pack_tensors(packed), tree)


def numbers(of: TrainingState, name: str, kind: type = np.float32) -> list[Any]:
    return np.frombuffer(parse_tensors(of.tensors)[name].content, kind).tolist()


def test_means_are_weighted_by_rows_and_counters_are_the_largest() -> None:
    before = state(F32_w=[0, 8], I64_seen=[3])
    after = [
        state(F32_w=[4, 8], I64_seen=[5], F32_o=[2]),  # a moment that begins here
        state(F32_w=[0, 16], I64_seen=[9], F32_o=[6]),
    ]
    parts = [
        Contribution(before, each, n)
        for each, n in zip(after, (0.75, 0.25), strict=True)
    ]
    mean = mean_state(parts, 7)
    assert numbers(mean, "model/w") == [3, 10]
    assert numbers(mean, "optimizer/o") == [3]
    assert numbers(mean, "model/seen", np.int64) == [9]
    assert mean.step == 7


@pytest.mark.parametrize("dtype", ["F16", "F64"])
def test_other_precisions_stay_what_they_are(dtype: str) -> None:
    before, after = state(**{f"{dtype}_w": [1.0]}), state(**{f"{dtype}_w": [3.0]})
    mean = mean_state([Contribution(before, after, 0.5) for _ in range(2)], 1)
    assert numbers(mean, "model/w", KINDS[dtype]) == [3.0]


def test_bfloat16_is_rounded_to_the_nearest() -> None:
    def upper(*values: float) -> Any:
        return (np.array(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)

    before, after = state(BF16_w=upper(0.0, 1.0)), state(BF16_w=upper(1.0, 1.0078125))
    mean = mean_state([Contribution(before, after, 1 / 3)], 1)
    found = np.array(numbers(mean, "model/w", np.uint16), np.uint32) << 16
    assert found.view(np.float32).tolist() == [0.333984375, 1.0]


def test_a_change_is_no_longer_than_the_bound() -> None:
    before = state(F32_w=[1, 1])
    after = state(F32_w=[4, 5], F32_o=[8])  # 3 and 4: of norm 5
    free, bound = (
        Contribution(before, after, 1.0),
        Contribution(before, after, 1.0, max_norm=2.5),
    )
    assert (free.shortened, bound.shortened) == (False, True)
    assert numbers(mean_state([free], 1), "model/w") == [4, 5]
    mean = mean_state([bound], 1)
    assert numbers(mean, "model/w") == [2.5, 3]
    assert numbers(mean, "optimizer/o") == [8]


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_what_is_no_number_is_said_with_its_parameter(odd: float) -> None:
    with pytest.raises(JobError, match=r"layers\.weight") as caught:
        Contribution(
            state(**{"F32_layers.weight": [1]}),
            state(**{"F32_layers.weight": [odd]}),
            1,
        )
    assert caught.value.code == "not-finite"


@pytest.mark.parametrize(
    "other", [state(F32_w=[1, 2]), state(F64_w=[1]), state(tree=b"[]", F32_w=[1])]
)
def test_states_of_other_forms_have_no_mean(other: TrainingState) -> None:
    before = state(F32_w=[0])
    same = Contribution(before, state(F32_w=[1]), 0.5)
    with pytest.raises(JobError) as caught:
        mean_state([same, Contribution(state(), other, 0.5)], 1)
    assert caught.value.code == "states-differ"


def test_the_order_of_slices_is_part_of_the_bits() -> None:
    """Control: another order is another sum."""
    before = state(F32_w=[0])
    after = [state(F32_w=[each]) for each in (1e8, 1.0, -1e8)]

    def mean(order: tuple[int, ...]) -> list[Any]:
        parts = [Contribution(before, after[n], 1.0) for n in order]
        return numbers(mean_state(parts, 1), "model/w")

    assert mean((0, 1, 2)) != mean((0, 2, 1))


def test_a_sum_that_is_no_number_is_said_on_every_rank() -> None:
    before, after = state(F32_w=[1]), state(F32_w=[3])
    own = Contribution(before, after, 0.5)
    for piece in own.pieces():
        piece.numbers[...] += np.float32(math.inf)  # what a rank that lies would bring
        own.put(piece)  # nothing yet: others go on with the next piece
    with pytest.raises(JobError, match="w contains NaN") as refused:
        own.result(1)
    assert refused.value.code == "not-finite"


def test_a_mean_in_short_pieces_and_in_a_memory_file_is_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = state(F32_w=[0.5] * 10, F64_d=[1.0] * 3, I64_n=[1, 2])
    after = [
        state(F32_w=[each] * 10, F64_d=[each] * 3, I64_n=[3, 4]) for each in (2, 7)
    ]

    def mean(states: Sequence[TrainingState]) -> TrainingState:
        return mean_state(
            [Contribution(before, e, 0.5, max_norm=4.0) for e in states], 1
        )

    whole = mean(after)
    monkeypatch.setattr("sealift.train.loop.averaging.PIECE_NUMBERS", 3)
    held = [replace(each, tensors=Held.of(each.tensors)) for each in after]
    assert mean(after) == whole == mean(held)
    assert whole.tensors == held[0].tensors != after[0].tensors  # it took its place


@pytest.mark.parametrize("count", [FEW_NUMBERS, FEW_NUMBERS + 1])
def test_of_what_is_moved_to_a_worker_a_mean_needs_no_former_numbers(
    count: int,
) -> None:
    """What few numbers were before counts, so that a count of steps stays whole."""

    def mean(former: float) -> list[float]:
        before = state(F32_omoment=[former] * count)
        after = [state(F32_omoment=[each] * count) for each in (2.0, 6.0)]
        parts = [Contribution(before, each, 0.25) for each in after]
        return numbers(mean_state(parts, 1), "optimizer/omoment")[:2]

    moved = count > FEW_NUMBERS
    assert mean(0.0) == [2.0, 2.0]
    assert mean(4.0) == ([2.0, 2.0] if moved else [4.0, 4.0])
