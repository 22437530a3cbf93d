"""A rank's model of its own owner's rows alone: trained at home, in nobody else's steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from sealift.data.schedule.visits import batches_of
from sealift.release.agreement.resources import GroupRule
from sealift.train.loop.slices import Slice
from sealift.train.loop.states import state_digest
from sealift.train.loop.trainer import JOINT, Trainer
from tests.unit.train.joints import in_place
from tests.unit.train.ranked import World
from tests.unit.train.recipes import LIGHTNING, PLAIN, SETTINGS
from tests.worlds.consortium import make_consortium

ROWS = ([24, 16], [40])


@dataclass
class HomeWorld(World):
    """Each slice has a baseline of its own owner."""

    def slice(self, number: int) -> Slice:
        made = super().slice(number)
        alone = (f"o{number}",)
        place = in_place(self.text)
        made.trainer = Trainer(
            place,
            replace(self.settings),
            values=2,
            number=number,
            alone=alone,
            moves=True,
        )
        return made


def alone_of(trainer: Trainer) -> Any:
    (name,) = trainer._states.keys() - {JOINT}
    return state_digest(trainer._states[name].model())


@pytest.mark.parametrize("text", [LIGHTNING, LIGHTNING.replace("SGD", "Adagrad")])
def test_steps_together_are_those_without_baselines(text: str) -> None:
    plain = World(text, ROWS).apart()
    with_own = HomeWorld(text, ROWS).apart()
    for number, (bare, own) in enumerate(zip(plain, with_own, strict=True)):
        assert own.trainer.digest() == bare.trainer.digest()
        single = HomeWorld(text, ROWS).slice(number)
        for group in batches_of(single.plan, "train", 0):
            with single.load(group.stops) as cargo:
                single.trainer.work(cargo)  # by itself
        assert alone_of(own.trainer) == alone_of(single.trainer)
        assert alone_of(own.trainer) != own.trainer.digest()


def test_it_is_no_part_of_what_all_ranks_go_on_from() -> None:
    trainer = Trainer(in_place(PLAIN), SETTINGS, alone=("north",), moves=True)
    trainer.build()
    state = trainer.snapshot()
    assert not state.alone
    trainer.restore(state)
    assert trainer._owners == ()  # whoever measures it would measure no training


def test_a_rank_has_one_if_its_owner_measures_at_home() -> None:
    base = make_consortium(group=GroupRule(3, "owner")).agreement
    rule = replace(base.output_rule, baseline_alone=True)
    bare = replace(rule, baseline_alone=False)
    first = base.data_owners[0]
    kept = [e for e in base.resources if e.part == "train" or e.owner == first]
    agreement = replace(base, output=rule, resources=tuple(kept))

    def owners(
        number: int | None, *, moves: bool, of: Any = agreement
    ) -> tuple[str, ...]:
        made = Trainer.under(of, in_place(PLAIN), SETTINGS, number=number, moves=moves)
        return made._owners

    assert owners(0, moves=True) == (first,)
    assert owners(1, moves=True) == ()  # it would be compared with nothing
    assert owners(0, moves=False) == ()  # in the plan local
    assert owners(None, moves=False) == agreement.data_owners
    assert owners(0, moves=True, of=replace(agreement, output=bare)) == ()
