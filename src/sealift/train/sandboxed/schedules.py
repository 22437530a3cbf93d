"""An optimizer and its schedulers, as a recipe configures them, and what of them goes on.

Where a scheduler is depends on two numbers alone: the optimizer steps that were made, and
the epoch. So it is the same in every slice of a job and after every restart: before a slice's
rows come, and after each step, a scheduler is called until it has been called as often as
these say. A slice that made fewer steps in a round than another catches up at the round's
end, as the count of steps does: then all slices have the same learning rates.
Source of the forms: https://lightning.ai/docs/pytorch/stable/common/lightning_module.html
(section configure_optimizers).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from sealift.errors import require_kind
from sealift.train.loop.faults import unfit
from sealift.train.sandboxed.imports import Guard

_KNOWN: Final = frozenset({"scheduler", "interval", "frequency", "name"})


@dataclass(slots=True)
class Schedule:
    """A scheduler, and when it is called.

    Attributes:
        scheduler: Of the optimizer.
        by_step: Whether it counts steps; else epochs.
        every: Of these, from one call to the next.
        made: Calls so far.
    """

    scheduler: LRScheduler
    by_step: bool = False
    every: int = 1
    made: int = 0


class Optimization:
    """What changes a model's weights.

    Args:
        optimizer: Of the model.
        schedules: Of the optimizer, in the order in which they are called.
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, schedules: Sequence[Schedule] = ()
    ) -> None:
        self.optimizer = optimizer
        self.schedules: Final = tuple(schedules)

    def advance(self, step: int, epoch: int, guard: Guard) -> None:
        """Call each scheduler as often as a number of steps and an epoch say.

        Args:
            step: Optimizer steps made.
            epoch: Of the rows that are trained on, from 0.
            guard: Runs what may be a recipe's own.
        """
        for each in self.schedules:
            due = (step if each.by_step else epoch) // each.every
            while each.made < due:
                guard(each.scheduler.step)
                each.made += 1

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own, or beside it each scheduler's with its number of calls."""
        own: dict[str, Any] = self.optimizer.state_dict()
        if not self.schedules:
            return own
        schedules = [[e.made, e.scheduler.state_dict()] for e in self.schedules]
        return {"optimizer": own, "schedules": schedules}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there.

        Raises:
            ValueError: it is of other schedulers.
        """
        if not self.schedules:
            self.optimizer.load_state_dict(dict(state))
            return
        self.optimizer.load_state_dict(state["optimizer"])
        # Steps were made, in another process; else torch warns that there were none.
        vars(self.optimizer)["_opt_called"] = True
        pairs = zip(self.schedules, state["schedules"], strict=True)
        for each, (made, own) in pairs:
            each.scheduler.load_state_dict(own)
            each.made = made


def read_optimization(made: Any) -> Optimization:
    """What ``configure_optimizers`` returned: one optimizer, and any number of schedulers.

    Args:
        made: An optimizer; a list of it; ``(optimizers, schedulers)``; or a dict with
            ``optimizer`` and ``lr_scheduler``. A scheduler is one of torch's, called after
            each epoch, or a dict of ``scheduler``, ``interval`` and ``frequency``.

    Raises:
        JobError: ``bad-recipe``.
    """
    schedulers: Any = ()  # of exact types: what is a recipe's own would run here
    if type(made) is dict:
        if not {"optimizer"} <= made.keys() <= {"optimizer", "lr_scheduler"}:
            raise unfit("no-optimizer")
        made, schedulers = made["optimizer"], made.get("lr_scheduler", ())
    elif type(made) in (tuple, list) and len(made) == 2:
        made, schedulers = made
    if type(made) in (tuple, list) and len(made) == 1:
        made = made[0]
    if not isinstance(made, torch.optim.Optimizer):
        raise unfit("no-optimizer")
    if type(schedulers) not in (tuple, list):
        schedulers = [schedulers]
    return Optimization(made, [_read_schedule(each, made) for each in schedulers])


def _read_schedule(written: Any, optimizer: torch.optim.Optimizer) -> Schedule:
    plain = written if type(written) is dict else {"scheduler": written}
    scheduler = plain.get("scheduler")
    if isinstance(scheduler, ReduceLROnPlateau) or "monitor" in plain:
        raise unfit("scheduler-measure")
    interval, every = plain.get("interval", "epoch"), plain.get("frequency", 1)
    known = isinstance(scheduler, LRScheduler) and plain.keys() <= _KNOWN
    counts = type(every) is int and every > 0
    if not known or not counts or interval not in ("epoch", "step"):
        raise unfit("no-scheduler")
    if vars(scheduler).get("optimizer") is not optimizer:
        raise unfit("no-scheduler")
    scheduler = require_kind(scheduler, LRScheduler)
    return Schedule(scheduler, by_step=interval == "step", every=every)
