"""What a job shares with one that has more epochs, and what its checkpoints are bound to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sealift.errors import MalformedError
from sealift.travel.settings import JobSettings, TrainingSettings

KEPT = TrainingSettings(epochs=3, keep_state=True)


@pytest.mark.parametrize("every", range(4))
@pytest.mark.parametrize("prepare", [False, True])
@pytest.mark.parametrize("epochs", range(1, 7))
def test_what_a_longer_job_begins_with(epochs: int, every: int, prepare: bool) -> None:
    def visits(count: int) -> JobSettings:
        return JobSettings(
            training=TrainingSettings(
                epochs=count, evaluate_every=every, prepare=prepare
            )
        )

    own = visits(epochs).visits
    passes = list(own.passes())
    for longer in range(epochs + 1, 14):
        others = list(visits(longer).visits.passes())
        assert passes[: own.passes_kept] == others[: own.passes_kept]
        assert passes[: own.passes_kept + 1] != others[
            : own.passes_kept + 1
        ] or own.passes_kept == len(passes)
    assert ("train", epochs - 1) in passes[: own.passes_kept]


def settings(**change: object) -> JobSettings:
    return JobSettings(training=replace(KEPT, **change))  # type: ignore[arg-type]


def test_a_checkpoint_that_is_kept_is_bound_to_all_but_the_epochs() -> None:
    kept = settings().checkpoint_shape
    later = settings(epochs=9, keep_state=False, continues="wards")
    assert later.checkpoint_shape == kept
    assert settings(seed=1).checkpoint_shape != kept
    assert settings().shape != settings(epochs=9).shape
    ended, longer = settings(keep_state=False), settings(keep_state=False, epochs=9)
    assert ended.checkpoint_shape != longer.checkpoint_shape
    assert ended.checkpoint_shape != kept


@pytest.mark.parametrize("name", ["../other", "a/b", "Wards", "-", "wards\n"])
def test_a_job_is_no_path(name: str) -> None:
    with pytest.raises(MalformedError):
        settings(continues=name)
