"""Joint training: groups of slices, baselines, states that are watched and carried."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch

from sealift.data.loader.rowtensors import batch_order
from sealift.errors import JobError, MalformedError
from sealift.train.loop.faults import REASONS
from sealift.train.loop.states import TrainerState, TrainingState, state_digest
from sealift.train.loop.statistics import check_sums, let_out, sum_numbers
from sealift.train.loop.tasks import plan_windows, window_rows
from sealift.train.loop.trainer import JOINT, TaskObserver, Trainer
from sealift.travel.settings import TrainingSettings
from tests.unit.train.joints import cargo, cargo_of, joint, resource
from tests.unit.train.recipes import LIGHTNING, PLAIN, SETTINGS, rows
from tests.unit.train.test_output import RULE

PREPARING = PLAIN.replace(
    "def build():\n",
    "def prepare(batch):\n"
    "    return {'count': len(batch['y']), 'sum': batch['x'].sum(0)}\n\n"
    "def build(statistics):\n    assert statistics['count'] == 48\n",
)


def test_two_groups_go_on_where_the_first_ended() -> None:
    training = joint()
    training.work([cargo("north")])
    first = training.digest()
    training.work([cargo("south")])
    assert training.digest() != first
    assert (training.steps, training.rows_trained) == (8, 64)


def test_a_snapshot_is_all_that_training_goes_on_from() -> None:
    training = joint(alone=("north",))
    training.work([cargo("north")])
    kept = training.snapshot()
    other = joint(alone=("north",))
    other.restore(kept)
    for each in (training, other):
        each.work([cargo("south", 20, epoch=3)])
    assert training.snapshot() == other.snapshot()
    assert other.rows_trained == 52


def test_baselines_see_their_own_rows_alone() -> None:
    """Mixed or not, the baseline of an owner is the same; the joint model is not."""
    apart, mixed = joint(alone=("north", "east")), joint(alone=("north", "east"))
    for owner in ("east", "north"):
        apart.work([cargo(owner)])
    mixed.work([cargo("north"), cargo("east")])
    assert apart.snapshot().alone == mixed.snapshot().alone
    assert apart.digest() != mixed.digest()
    assert mixed.steps == apart.steps


def test_mixed_cargo_is_one_table_whatever_comes_first() -> None:
    first, second = joint(), joint()
    found = first.work([cargo("north", 20), cargo("east", 12)])
    second.work([cargo("east", 12), cargo("north", 20)])
    assert first.digest() == second.digest()
    assert found["north-train"] is found["east-train"]
    assert found["east-train"].shared
    assert found["east-train"].rows == 32


def test_mixed_rows_are_the_right_ones() -> None:
    """Two halves of a table are trained on like the whole, but for the order."""
    recipe = PLAIN + (
        "\n\ndef loss(model, batch):\n"
        "    return batch['x'].sum() / len(batch['x']) + 0 * model(batch['x']).sum()\n"
    )
    table = rows(24, seed=5)
    expected = joint(recipe).work([cargo_of(resource("north", 24), table)])
    halves = [
        cargo_of(resource(owner, 12), part)
        for owner, part in zip(("north", "east"), table.split(12), strict=True)
    ]
    found = joint(recipe).work(halves)
    assert found["east-train"].metrics["loss"] == pytest.approx(
        expected["north-train"].metrics["loss"], abs=1e-5
    )


def test_mixed_cargo_needs_one_schema() -> None:
    other = cargo("east")
    schema = {"fields": [{"name": "z", "dtype": "float32", "shape": [6]}]}
    changed = replace(other, resource=replace(other.resource, schema=schema))
    with pytest.raises(MalformedError, match="x where east-train has z") as caught:
        joint().work([cargo("north"), changed])
    assert caught.value.code == "mixed-schemas"


def test_measuring_changes_nothing() -> None:
    recipe = (
        LIGHTNING
        + "\n\nimport torch\n"
        + (
            "def evaluate(model, batch):\n"
            "    with torch.no_grad():\n"
            "        model.layers.bias += 1\n"
            "    return {'accuracy': 0.0}\n"
        )
    )
    training = joint(recipe, alone=("north",))
    training.work([cargo("north")])
    before = training.snapshot()
    found = training.work([cargo("north", part="heldout")], "heldout")
    assert training.snapshot() == before
    assert set(found["north-heldout"].metrics) == {"accuracy", "alone.north.accuracy"}


SPELLING = PLAIN + (
    "\n\ndef evaluate(model, batch):\n"
    "    rows = ''.join(str(int(y)) for y in batch['y'])\n"
    "    return {'loss': 8.0, f'alone.{rows}.loss': 8.0, 'alone.south.loss': 8.0}\n"
)


def spelled() -> set[str]:
    """Names of the numbers that leave of a recipe that spells rows in names."""
    rule = replace(RULE, baseline_alone=True)
    training = joint(SPELLING)
    found = training.work([cargo("north", 8, part="heldout")], "heldout")
    return set(let_out(found["north-heldout"], rule).metrics)


def test_a_name_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JobError) as caught:
        spelled()
    assert caught.value.code == "measure-not-agreed"
    monkeypatch.setattr("sealift.train.loop.trainer.plain_names", dict)  # mutant
    assert any(set(name[6:14]) <= set("01") for name in spelled())


def test_a_slice_gives_as_many_values_as_were_allowed() -> None:
    training = joint(values=3, value_rows=16)
    found = training.work([cargo("north", 50)])["north-train"]
    assert len(found.curve) == 3
    assert found.curve_rows == (16, 16, 18)
    weighted = sum(v * r for v, r in zip(found.curve, found.curve_rows, strict=True))
    assert found.metrics["loss"] == pytest.approx(weighted / 50)


def sum_of_first_window(batch_rows: int) -> tuple[float, int]:
    settings = replace(SETTINGS, batch_rows=batch_rows)
    training = joint(LIGHTNING, settings, values=16, value_rows=16)
    found = training.work([cargo("north", 256)])["north-train"]
    return found.curve[0] * found.curve_rows[0], found.curve_rows[0]


def loss_of_one(place: int) -> float:
    """Of the row at this place of the order, by the model as it begins."""
    order = batch_order(256, seed=SETTINGS.seed, epoch=0, scope="north-train/0")
    row = rows(256, seed=len("north"))[order[place : place + 1]]
    training = joint(LIGHTNING, replace(SETTINGS, batch_rows=1))
    found = training.work([cargo_of(resource("north", 1), row)])
    return found["north-train"].metrics["loss"]


def test_steps_of_17_rows_and_of_16_do_not_tell_the_one_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The orchestrator runs the job twice, and subtracts what the first windows told."""
    true = loss_of_one(16)
    (_, few), (_, more) = sum_of_first_window(16), sum_of_first_window(17)
    assert (few, more) == (16, 256)  # no edges of 17 rows: one window of all

    def cut(each: int, settings: TrainingSettings, **_: int) -> tuple[int, ...]:
        return (1, -(-each // settings.batch_rows) - 1)

    monkeypatch.setattr("sealift.train.loop.trainer.plan_windows", cut)  # mutant
    (told, _), (told_more, _) = sum_of_first_window(16), sum_of_first_window(17)
    assert told_more - told == pytest.approx(true, abs=1e-4)


@pytest.mark.parametrize("batch_rows", [1, 5, 16, 17, 24, 32, 300])
@pytest.mark.parametrize("count", [16, 40, 256, 1000])
def test_every_window_ends_where_any_jobs_may(count: int, batch_rows: int) -> None:
    settings = replace(SETTINGS, batch_rows=batch_rows)
    windows = plan_windows(count, settings, most=5, least_rows=16)
    lengths = window_rows(count, settings, windows)
    assert sum(lengths) == count
    assert len(windows) <= 5
    assert all(length % 16 == 0 for length in lengths[:-1])
    assert lengths[-1] >= 16


def change(state: TrainingState, at: int = -1) -> TrainingState:
    raw = bytearray(state.tensors)
    raw[at] ^= 1
    return replace(state, tensors=bytes(raw))


@pytest.mark.parametrize("part", ["weights", "optimizer", "step", "baseline"])
def test_a_change_between_slices_is_noticed(part: str) -> None:
    training = joint(alone=("north",))
    training.work([cargo("north")])
    training.verify()
    name = "north" if part == "baseline" else JOINT
    state = training._states[name]
    changed = {
        "weights": change(state),
        "baseline": change(state),
        "optimizer": replace(state, tree=state.tree.replace(b"0x1.4", b"0x1.5", 1)),
        "step": replace(state, step=state.step + 1),
    }[part]
    assert changed != state
    training._states[name] = changed
    for use in (training.verify, lambda: training.work([cargo("north")])):
        with pytest.raises(JobError) as caught:
            use()
        assert caught.value.code == "state-changed"


class Recorded(TaskObserver):
    seen: list[TrainingState] = []  # noqa: RUF012 - one test's

    def hand_over(self, model: int, state: TrainingState) -> None:
        self.seen.append(state)
        super().hand_over(model, state)


def test_states_are_digested_within_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sealift.train.loop.trainer.TaskObserver", Recorded)
    joint(settings=replace(SETTINGS, digest_every=2)).work([cargo("north", 56)])
    assert [state.step for state in Recorded.seen] == [2, 2, 4, 4, 6, 6]


def test_a_change_between_two_steps_is_noticed() -> None:
    told = TaskObserver()
    state = TrainingState(1, b"12345678", b"{}")
    told.hand_over(0, state)
    with pytest.raises(JobError) as caught:
        told.hand_over(0, change(state))
    assert caught.value.code == "state-changed"


def test_digesting_within_a_slice_changes_no_bit() -> None:
    plain, watched = joint(), joint(settings=replace(SETTINGS, digest_every=1))
    for each in (plain, watched):
        each.work([cargo("north")])
    assert plain.digest() == watched.digest()


def test_sums_add_up_and_reach_build() -> None:
    training = joint(PREPARING)
    training.work([cargo("north", 20)], "prepare")
    training.work([cargo("east", 28)], "prepare")
    sums = check_sums(training.statistics)
    assert sum_numbers(sums["count"]) == (48,)
    expected = rows(20, seed=5).double()
    assert len(sum_numbers(sums["sum"])) == 4
    assert expected.shape[0] == 20
    training.work([cargo("north", 20)])
    assert training.steps == 3


def test_sums_of_mixed_cargo_are_the_same() -> None:
    apart, mixed = joint(PREPARING), joint(PREPARING)
    for owner, count in (("east", 28), ("north", 20)):
        apart.work([cargo(owner, count)], "prepare")
    mixed.work([cargo("north", 20), cargo("east", 28)], "prepare")
    assert mixed.statistics == apart.statistics


def test_a_snapshot_in_the_middle_of_a_pass_of_sums_builds_nothing() -> None:
    """A model that was built on half of the sums would be another one."""
    first = joint(PREPARING)
    first.work([cargo("north", 20)], "prepare")
    kept = first.snapshot()
    assert kept.joint is None
    second = joint(PREPARING)
    second.restore(TrainerState.from_parts(kept.to_parts()))
    for each in (first, second):
        each.work([cargo("east", 28)], "prepare")
        each.work([cargo("north", 20)])
    assert second.snapshot() == first.snapshot()


@pytest.mark.parametrize(
    "returned",
    [
        "3",
        "{'a b': 1}",
        "{'a': 'text'}",
        "{'a': batch['x'][:1 + (len(batch['x']) == 8)]}",
    ],
)
def test_sums_that_are_none(returned: str) -> None:
    text = PLAIN + f"\n\ndef prepare(batch):\n    return {returned}\n"
    with pytest.raises(JobError) as caught:
        joint(text).work([cargo("north", 12)], "prepare")
    assert caught.value.code == "bad-recipe"


def test_too_many_sums() -> None:
    text = PLAIN + "\n\ndef prepare(batch):\n    return {'a': torch.zeros(65537)}\n"
    with pytest.raises(JobError, match="too many numbers"):
        joint(text).work([cargo("north", 12)], "prepare")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            PLAIN.replace(
                "def build():\n    return",
                "import os\ndef build():\n    n = int.from_bytes(os.urandom(2), 'big')\n"
                "    return",
            ).replace(
                "nn.Linear(4, 8)",
                "nn.Linear(4, 8), nn.Linear(8, 8 + n), nn.Linear(8 + n, 8)",
            ),
            "restore",
        ),
        (
            PLAIN.replace(
                "    return torch.optim.AdamW(model.parameters(), lr=1e-2)",
                "    made = torch.optim.AdamW(model.parameters(), lr=1e-2)\n"
                "    made.param_groups[0]['odd'] = {1}\n    return made",
            ),
            "optimizer-state",
        ),
        (
            LIGHTNING.replace(
                "    def training_",
                "    def get_extra_state(self):\n        return 'rows'\n\n"
                "    def training_",
            ),
            "model-state",
        ),
        (
            PLAIN.replace(
                "def loss(model, batch):\n",
                "def loss(model, batch):\n"
                "    model.register_buffer('seen', batch['x'].clone())\n",
            ),
            "restore",
        ),
    ],
)
def test_a_state_that_cannot_be_carried(text: str, reason: str) -> None:
    training = joint(text)

    def work_twice() -> None:
        for _ in range(2):
            training.work([cargo("north")])

    with pytest.raises(JobError, match=re.escape(REASONS[reason][0])) as caught:
        work_twice()
    assert caught.value.code == "bad-recipe"


def test_what_a_recipe_keeps_in_a_module_is_gone() -> None:
    """A global of the recipe lives for one slice; the state is all that lives on."""
    text = PLAIN.replace(
        "def loss(model, batch):\n",
        "SEEN = []\n\ndef loss(model, batch):\n"
        "    SEEN.append(1)\n    assert len(SEEN) <= 4\n",
    )
    training = joint(text)
    for _ in range(3):
        training.work([cargo("north", 32)])
    assert training.steps == 12


def test_the_digest_is_that_of_torchs_own_bytes() -> None:
    """Independent of our layout: names, torch's dtypes, shapes, bytes."""
    from sealift.crypto.hash import sha256
    from sealift.ids import Digest
    from sealift.train.sandboxed.torchstate import as_tensors

    training: Trainer = joint()
    training.work([cargo("north")])
    state = training.snapshot().joint
    tensors = {
        name.removeprefix("model/"): each
        for name, each in as_tensors(state.tensors).items()
        if name.startswith("model/")
    }
    parts = []
    for name in sorted(tensors):
        tensor = tensors[name]
        sizes = "x".join(str(size) for size in tensor.shape)
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        parts.append(f"{name}|{tensor.dtype}|{sizes}".encode() + sha256(raw))
    assert state_digest(state.model()) == Digest.of(b"".join(parts))
