"""The best of the evaluated states, and an end before the planned one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sealift.errors import JobError, MalformedError, UsageError
from sealift.train.loop.held import read_of
from sealift.train.loop.states import TrainerState, TrainingState, parse_tensors
from sealift.train.loop.trainer import BestState
from sealift.train.plans import _check_choice
from sealift.train.sandboxed.training import Training
from sealift.travel.settings import TrainingSettings
from tests.sim.jobworld import RECIPE, Wishes, fresh_world, train_here
from tests.unit.train.recipes import PLAIN, SETTINGS, load
from tests.worlds.consortium import make_consortium

BEST = TrainingSettings(
    epochs=9, evaluate_every=1, measure="accuracy", keep="best", stop_after=2
)


def a_state(step: int) -> TrainingState:
    return replace(Training(load(PLAIN), SETTINGS).state(), step=step)


def chosen(values: list[float], settings: TrainingSettings = BEST) -> BestState:
    best, name = BestState(settings), settings.measure.removeprefix("-")
    for epoch, value in enumerate(values):
        best.take(epoch, {name: value, "other": 1.0}, a_state(epoch))
    return best


@pytest.mark.parametrize(
    ("measure", "values", "epoch", "over"),
    [
        ("accuracy", [0.5, 0.7, 0.6], 1, False),
        ("accuracy", [0.5, 0.7, 0.6, 0.7], 1, True),  # as good is no better
        ("accuracy", [0.5, 0.7, 0.6, 0.8], 3, False),
        ("loss", [0.5, 0.7, 0.6], 0, True),
        ("-mae", [3.0, 2.0, 1.0], 2, False),
    ],
)
def test_the_best_epoch_by_a_measure(
    measure: str, values: list[float], epoch: int, over: bool
) -> None:
    best = chosen(values, replace(BEST, measure=measure))
    assert (best.epoch, best.is_over) == (epoch, over)
    assert best.state is not None
    assert best.state.step == epoch
    assert best.state.model().keys() == a_state(0).model().keys()
    assert best.state.tree == b""


def test_it_goes_on_from_a_checkpoint() -> None:
    best, again = chosen([0.5, 0.7, 0.6]), BestState(BEST)
    parts = TrainerState(a_state(3), best=best.to_bytes()).to_parts()
    whole = {name: read_of(each, 0, len(each)) for name, each in parts.items()}
    again.restore(TrainerState.from_parts(whole).best)
    for each in (best, again):
        each.take(3, {"accuracy": 0.6}, a_state(3))
    assert (again.epoch, again.is_over) == (best.epoch, best.is_over) == (1, True)
    assert read_of(again.to_bytes(), 0, len(again.to_bytes())) == read_of(
        best.to_bytes(), 0, len(best.to_bytes())
    )
    again.restore(b"")  # a checkpoint before the first evaluation
    assert (again.epoch, again.is_over, again.state) == (-1, False, None)


@pytest.mark.parametrize("length", [10, 25, 30])
def test_a_choice_that_was_cut_off_is_refused(length: int) -> None:
    with pytest.raises(MalformedError) as caught:
        BestState(BEST).restore(b"x" * length)
    assert caught.value.code == "bad-tensors"


@pytest.mark.parametrize(
    ("measure", "best"),
    [
        ("loss", 0), ("mae", 0), ("-mae", 0), ("rmse", 0), ("site_rmse", 0),
        ("calibration_error", 0), ("-accuracy", 0), ("accuracy", 1), ("r2", 1), ("auc", 1),
        ("lossless", 1),
    ],
)  # fmt: skip
def test_no_error_is_best_where_it_is_highest(measure: str, best: int) -> None:
    found = BestState(replace(BEST, measure=measure))
    for epoch, value in enumerate((0.2, 0.7)):
        found.take(epoch, {measure.removeprefix("-"): value}, a_state(epoch))
    assert found.epoch == best


def test_a_measure_that_nobody_took_is_said_with_those_there_are() -> None:
    with pytest.raises(JobError, match="there are: loss") as caught:
        BestState(BEST).take(0, {"loss": 1.0}, a_state(0))
    assert caught.value.code == "measure-missing"


@pytest.mark.parametrize(
    ("changes", "plan", "why"),
    [
        ({"measure": ""}, "local", "names none"),
        ({"measure": "f1"}, "local", "no measure f1"),
        ({"evaluate_every": 0}, "local", "evaluate_every is 0"),
        ({"keep": "last", "stop_after": 0}, "local", "neither"),
        ({}, "travel", "plan travel"),
    ],
)
def test_what_cannot_choose_is_refused_before_anything_starts(
    changes: dict[str, object], plan: str, why: str
) -> None:
    settings = replace(BEST, **changes)  # type: ignore[arg-type]
    agreement = make_consortium().agreement
    with pytest.raises(UsageError, match=why) as caught:
        _check_choice(settings, agreement, plan)  # type: ignore[arg-type]
    assert caught.value.code == "bad-choice"


@pytest.mark.parametrize("name", ["accuracy", "auc", "-mae", "site_f1", "r2", "loss"])
def test_what_agreed_tables_give_may_choose(name: str) -> None:
    agreement = make_consortium().agreement
    listed = ("classes_2", "loss", "regression", "scores_64", "site_classes_2")
    rule = replace(agreement.output_rule, metrics=listed)
    agreed = replace(agreement, output=rule)
    _check_choice(replace(BEST, measure=name), agreed, "ddp")
    with pytest.raises(UsageError, match="macro_f1"):  # of three classes and more
        _check_choice(replace(BEST, measure="macro_f1"), agreed, "ddp")


SEEN = RECIPE.replace(
    "        self.layers = ",
    "        self.register_buffer('seen', torch.zeros(()))\n        self.layers = ",
).replace("time.sleep(STEP_S)", "self.seen += 1")
# Best after the second epoch, whatever was learnt.
EVALUATE = """

def evaluate(model, batch):
    good = 1.0 / (1.0 + abs(float(model.seen) - {}))
    return {{"accuracy": good * len(batch["label"])}}
"""


def run(
    folder: Path, best_at: float, epochs: int, more: str = ""
) -> tuple[bytes, float]:
    wishes = Wishes(
        epochs=epochs,
        plan="local",
        recipe=SEEN + EVALUATE.format(best_at),
        seed=f"7\n{more}",  # type: ignore[arg-type]
        rule={"digits": "6"},
    )
    found = train_here(fresh_world(folder, wishes))
    return read_of(found.model, 0, len(found.model)), found.metrics["accuracy"]


def test_a_run_hands_out_its_best_epoch_and_ends_early(tmp_path: Path) -> None:
    steps = parse_tensors(run(tmp_path / "one", 0, 1)[0])["seen"].content
    best_at = 2 * float(np.frombuffer(bytes(steps), np.float32)[0])
    wanted = run(tmp_path / "two", best_at, 2)
    asked = 'evaluate_every = 1\nmeasure = "accuracy"\n'
    best = run(tmp_path / "best", best_at, 5, f'{asked}keep = "best"')
    assert best == wanted
    early = run(tmp_path / "early", best_at, 5, f"{asked}stop_after = 2")
    assert early == run(tmp_path / "four", best_at, 4)
    assert early != best
