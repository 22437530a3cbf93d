"""Every slice of a job in one task, which adds up their gradients: the plan ``local``.

One model and one optimizer; what no gradient belongs to (buffers) each slice has for
itself. The bits are those of as many ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sealift.train.loop.statistics import Measured
from sealift.train.loop.tasks import (
    SliceTask,
    TaskInputs,
    TaskModel,
    Together,
    Workplace,
)
from sealift.train.loop.told import Losses, TaskObserver
from sealift.train.loop.trainer import Trainer, in_order, parts_of
from sealift.travel.accelerator.setup import LoadedCargo
from sealift.travel.settings import TrainingSettings


def train_beside(
    trainers: Sequence[Trainer],
    cargo: Sequence[Sequence[LoadedCargo]],
    together: Together,
    *,
    workplace: Workplace,
    settings: TrainingSettings,
) -> list[Mapping[str, Measured]]:
    """Train on one group of every slice; what was measured of each, by resource.

    Args:
        trainers: Of every slice, in their order.
        cargo: Rows of every slice; none of one whose own are used up.
        together: The steps.
        workplace: Where the recipe runs.
        settings: Of the loop.

    Raises:
        See ``Trainer.work``.
    """
    own = [in_order(each) for each in cargo]
    every = [each for rows in own for each in rows]
    models, losses = list[TaskModel](), list[Losses]()
    for trainer, rows in zip(trainers, own, strict=True):
        trainer.build()
        trainer.verify()
        first = sum(len(model.parts) for model in models)
        models.append(trainer.model_for(rows, first=first))
        losses.append(trainer.losses(rows, models[-1]))
    told = TaskObserver({number: each.watch for number, each in enumerate(losses)})
    given = TaskInputs(
        rows=[each.memory for each in every],
        states=[each.joint for each in trainers],
        statistics=trainers[0].statistics,
    )
    task = SliceTask(
        "train", settings, tuple(models), parts_of(every), together=together
    )
    done = workplace.do(task, given, told)
    for trainer, state, loss in zip(trainers, done.states, losses, strict=True):
        trainer.end_training(state, loss.rows, told.summed)
    return [each.found(told.of(number)) for number, each in enumerate(losses)]
