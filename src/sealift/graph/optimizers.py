"""Optimizers and schedules by name: from torch's objects to a document, and back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from sealift.graph.document import (
    OPTIMIZERS,
    SCHEDULES,
    NamedOptimizer,
    NamedSchedule,
    OptionGroup,
    option_problem,
)

_OPTIMIZERS: Final = {
    "SGD": torch.optim.SGD,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
}
_SCHEDULES: Final = {
    "StepLR": lr_scheduler.StepLR,
    "MultiStepLR": lr_scheduler.MultiStepLR,
    "ConstantLR": lr_scheduler.ConstantLR,
    "LinearLR": lr_scheduler.LinearLR,
    "ExponentialLR": lr_scheduler.ExponentialLR,
    "PolynomialLR": lr_scheduler.PolynomialLR,
    "CosineAnnealingLR": lr_scheduler.CosineAnnealingLR,
    "CosineAnnealingWarmRestarts": lr_scheduler.CosineAnnealingWarmRestarts,
}


class NoNameError(Exception):
    """An optimizer or a scheduler that has no name in a document; the text says why."""


def describe_optimizer(model: nn.Module, optimization: Any) -> NamedOptimizer:
    """The document's words for what ``configure_optimizers`` returned.

    Raises:
        NoNameError: it is none that can be named.
    """
    optimizer = optimization.optimizer
    name = type(optimizer).__name__
    if _OPTIMIZERS.get(name) is not type(optimizer):
        raise NoNameError(
            f"configure_optimizers() returns {name}, and {', '.join(OPTIMIZERS)} can be named"
        )
    names = {id(each): own for own, each in reversed(list(model.named_parameters()))}
    groups = []
    for group in optimizer.param_groups:
        if not all(id(each) in names for each in group["params"]):
            raise NoNameError(
                "the optimizer changes tensors that are not parameters of the model"
            )
        trained = [names[id(each)] for each in group["params"] if each.requires_grad]
        options = {
            each: _plain(each, group[each])
            for each in OPTIMIZERS[name]
            if each in group
        }
        # A scheduler has changed the rate already; it begins from the first one again.
        options["lr"] = _plain("lr", group.get("initial_lr", group["lr"]))
        if group.get("capturable") or group.get("differentiable"):
            raise NoNameError("the optimizer is capturable or differentiable")
        if trained:
            groups.append(OptionGroup(tuple(trained), options))
    schedules = [_describe_schedule(each) for each in optimization.schedules]
    return NamedOptimizer(name, tuple(groups), tuple(schedules))


def _describe_schedule(schedule: Any) -> NamedSchedule:
    scheduler = schedule.scheduler
    name = type(scheduler).__name__
    if _SCHEDULES.get(name) is not type(scheduler):
        raise NoNameError(
            f"configure_optimizers() returns the scheduler {name}, and "
            f"{', '.join(SCHEDULES)} can be named"
        )
    options = {each: _plain(each, getattr(scheduler, each)) for each in SCHEDULES[name]}
    interval = "step" if schedule.by_step else "epoch"
    return NamedSchedule(name, options, interval, schedule.every)  # type: ignore[arg-type]


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Counter):
        return sorted(value.elements())
    if isinstance(value, Tensor):
        raise NoNameError(f"the option {name} is a tensor")
    return list(value) if isinstance(value, tuple) else value


def make_optimizer(
    named: NamedOptimizer,
    tensors: Mapping[str, nn.Parameter],
    parameters: Mapping[str, Any],
) -> tuple[torch.optim.Optimizer, list[tuple[Any, bool, int]]]:
    """The optimizer that a document names.

    Args:
        named: Checked.
        tensors: The model's parameters by name.
        parameters: The job's, which options may name.

    Returns:
        The optimizer; each scheduler, whether it counts steps, and how many between calls.
    """
    groups = [
        {"params": [tensors[each] for each in group.parameters]}
        | _options(group.options, parameters)
        for group in named.groups
    ]
    optimizer = _OPTIMIZERS[named.name](groups)
    schedules = []
    for each in named.schedules:
        options = _options(each.options, parameters)
        made = _SCHEDULES[each.name](optimizer, **options)
        schedules.append((made, each.interval == "step", each.frequency))
    return optimizer, schedules


def _options(
    options: Mapping[str, Any], parameters: Mapping[str, Any]
) -> dict[str, Any]:
    found = {}
    for name, value in options.items():
        if isinstance(value, dict):
            value = parameters[value["parameter"]]
        problem = option_problem(name, value)  # the job may have set it
        if problem:
            raise ValueError(f"option {name} {problem}")
        found[name] = tuple(value) if isinstance(value, list | tuple) else value
    return found
