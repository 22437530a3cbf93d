"""T7: what travels is what was there before: model, optimizer, sums and the recipe.

One bit of any of them flips in the accelerator's memory while it travels, between two
slices or between the two moments in which steps stop and go on. It is found before the
next use, and the job ends there; nothing that was made from it leaves. Without the
digest the same flip goes into training (the mutant), and a digest that says yes to
everything or is made of the first bytes only is told from a real one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from sealift.errors import JobError
from sealift.train.loop.held import Held, read_of
from sealift.train.loop.states import (
    Settled,
    TensorBytes,
    TrainingState,
    give_away,
    pack_tensors,
    parse_tensors,
)
from sealift.train.loop.tasks import SliceTask, TaskInputs
from sealift.train.loop.trainer import JOINT, BestState, TaskObserver, Trainer
from sealift.train.worker.executor import RecipeExecutor
from tests.unit.train.joints import cargo, joint
from tests.unit.train.recipes import PLAIN, SETTINGS
from tests.unit.train.test_joint import PREPARING


def flip(raw: bytes, bit: int) -> bytes:
    changed = bytearray(raw)
    changed[bit // 8 % len(raw)] ^= 1 << bit % 8
    return bytes(changed)


def place_of(state: TrainingState, prefix: str) -> Iterator[int]:
    """First bit of every tensor whose name begins so."""
    base = len(state.tensors) - sum(
        len(each.content) for each in parse_tensors(state.tensors).values()
    )
    at = base
    for name, each in parse_tensors(state.tensors).items():
        if name.startswith(prefix):
            yield 8 * at
        at += len(each.content)


def damage_state(training: Trainer, name: str, changed: TrainingState) -> None:
    assert changed != training._states[name]
    training._states[name] = changed


def trained() -> Trainer:
    training = joint(alone=("north",))
    training.work([cargo("north")])
    training.verify()
    return training


def assert_found(training: Trainer, *uses: Callable[[], object]) -> None:
    for use in (training.verify, training.snapshot, *uses):
        with pytest.raises(JobError) as caught:
            use()
        assert caught.value.code == "state-changed"


def test_a_bit_of_the_best_state_which_waits_for_the_end() -> None:
    training = trained()
    asked = replace(SETTINGS, measure="loss", keep="best")
    training.best = BestState(asked)
    training.best.take(0, {"loss": 1.0}, training.joint)
    training.snapshot()
    kept = training.best._state
    assert kept is not None
    tensors = read_of(kept.tensors, 0, len(kept.tensors))
    training.best._state = replace(kept, tensors=flip(tensors, 8 * len(tensors) - 1))
    for use in (training.snapshot, lambda: training.best.state):
        with pytest.raises(JobError) as caught:
            use()
        assert caught.value.code == "state-changed"


@pytest.mark.parametrize("prefix", ["model/", "optimizer/"])
@pytest.mark.parametrize("name", [JOINT, "north"])
def test_a_bit_of_any_tensor(name: str, prefix: str) -> None:
    training = trained()
    state = training._states[name]
    bits = list(place_of(state, prefix))
    assert len(bits) >= 4
    for bit in bits:
        for offset in (0, 7, 31):
            changed = replace(state, tensors=flip(state.tensors, bit + offset))
            damage_state(training, name, changed)
            assert_found(training, lambda: training.work([cargo("south")]))
            training._states[name] = state
    training.verify()  # the control: undamaged, it goes on
    training.work([cargo("south")])


def test_bits_anywhere() -> None:
    training = trained()
    state = training._states[JOINT]
    draw = np.random.default_rng(5)
    for _ in range(60):
        bit = int(draw.integers(8 * len(state.tensors)))
        changed = replace(state, tensors=flip(state.tensors, bit))
        damage_state(training, JOINT, changed)
        assert_found(training)
        bit = int(draw.integers(8 * len(state.tree)))
        damage_state(training, JOINT, replace(state, tree=flip(state.tree, bit)))
        assert_found(training)
        training._states[JOINT] = state
    training.verify()


def test_the_count_of_steps() -> None:
    training = trained()
    state = training._states[JOINT]
    damage_state(training, JOINT, replace(state, step=state.step ^ 1))
    assert_found(training)


def test_the_sums_that_a_model_is_built_on() -> None:
    training = joint(PREPARING)
    training.work([cargo("north", 20)], "prepare")
    training.work([cargo("east", 28)], "prepare")
    kept = training._statistics
    for use in (
        lambda: training.work([cargo("east", 28)], "prepare"),
        lambda: training.work([cargo("north", 20)]),
        training.build,
    ):
        training._statistics = flip(kept, 8 * len(kept) - 1)
        assert_found(training, use, lambda: training.statistics)
    training._statistics = kept
    training.work([cargo("north", 20)])
    assert training.steps == 3


def test_without_the_digest_it_is_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant: the damage goes on, and into the model."""
    monkeypatch.setattr(Settled, "verify", lambda *_: None)
    clean, damaged = trained(), trained()
    state = damaged._states[JOINT]
    bit = next(place_of(state, "model/")) + 22  # high in a fraction
    damage_state(damaged, JOINT, replace(state, tensors=flip(state.tensors, bit)))
    for each in (clean, damaged):
        each.work([cargo("south")])
    assert clean.digest() != damaged.digest()


def test_a_key_of_its_own_each_time() -> None:
    """Whoever could compute a digest could prepare a change that keeps it."""
    state = trained()._states[JOINT]
    digests = {Settled(state)._digest for _ in range(20)}
    assert len(digests) == 20


def test_a_change_while_steps_stand_still() -> None:
    """Within a slice (``digest_every``): the worker hands its state over twice."""
    training = joint(settings=replace(SETTINGS, digest_every=1))
    work = training._workplace.do

    class Damaging(TaskObserver):
        calls = 0

        def hand_over(self, model: int, state: TrainingState) -> None:
            self.calls += 1
            if self.calls == 4:  # the second look after the second step
                state = replace(state, tensors=flip(state.tensors, 8 * 900))
            super().hand_over(model, state)

    def do(task: SliceTask, given: TaskInputs, _told: object) -> object:
        return work(task, given, Damaging())

    training.work([cargo("north")])  # the control
    training._workplace.do = do  # type: ignore[method-assign,assignment]
    with pytest.raises(JobError) as caught:
        training.work([cargo("south")])
    assert caught.value.code == "state-changed"


def test_what_stays_of_a_state_whose_rest_was_moved_to_a_worker() -> None:
    """What a round began with: its mean is made of the model and the small tensors."""
    long = TensorBytes("F32", (5000,), b"\1" * 20000)
    parts = {"model/w": long, "optimizer/m": long}
    held = Held.of(pack_tensors(parts))
    state = TrainingState(0, held, b"{}")
    began, whole = Settled(state, moved=True), Settled(state)
    give_away(state)
    began.verify(state)
    with pytest.raises(JobError):
        whole.verify(state)  # the control: something was moved
    (at,) = place_of(state, "model/")
    held.write(at // 8, b"\2")
    with pytest.raises(JobError) as caught:
        began.verify(state)
    assert caught.value.code == "state-changed"


@pytest.mark.distributed
def test_the_recipes_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bundle lies in memory; a worker that got another one would run another."""
    files = {"recipe.py": PLAIN.encode()}
    with RecipeExecutor(files, "recipe.py") as executor:
        training = Trainer(executor, SETTINGS)
        training.work([cargo("north")])
        view = executor._equipment.bundle.code
        at = bytes(view).index(b"Dropout(0.2") + 10
        view[at] ^= 1  # 0.3
        with pytest.raises(JobError) as caught:
            training.work([cargo("south")])
        assert caught.value.code == "state-changed"
        view[at] ^= 1
        training.work([cargo("south")])  # the control
        clean = training.digest()
    with RecipeExecutor(files, "recipe.py") as executor:  # the mutant
        monkeypatch.setattr(RecipeExecutor, "_verify_bundle", lambda *_: None)
        training = Trainer(executor, SETTINGS)
        training.work([cargo("north")])
        executor._equipment.bundle.code[at] ^= 1
        training.work([cargo("south")])
        assert training.digest() != clean
