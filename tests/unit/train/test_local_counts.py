"""The plan local counts runs, uses and passes in the vaults that it opens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sealift.cli.train import _count_local
from sealift.errors import PolicyError
from sealift.release.agreement import ReleaseRule
from sealift.release.vault.vault import Vault
from sealift.travel.settings import JobSettings, TrainingSettings
from tests.worlds.consortium import OUTPUT, TRAINING, make_consortium

EPOCHS = 2


def job(name: str, seed: int = 0) -> Any:
    class Job:
        settings = JobSettings(training=TrainingSettings(epochs=EPOCHS, seed=seed))

    Job.name = name  # type: ignore[attr-defined]
    return Job()


def counted(folder: Path, **changes: Any) -> list[str]:
    """What becomes of jobs, each in a process of its own: its code, or empty."""
    consortium = make_consortium()
    resources = tuple(
        replace(each, rule=ReleaseRule(max_uses=changes.pop(each.part, 0)))
        if each.owner == "ada" and each.part in changes
        else each
        for each in consortium.agreement.resources
    )
    agreement = replace(consortium.agreement, resources=resources, **changes)
    identity = consortium.identities["ada"]
    Vault.create(folder / "ada.vault", identity).close()
    codes = []
    for number in range(3):
        vault = Vault.open(folder / "ada.vault", identity)
        try:
            _count_local(
                job(f"job-{number}", number), agreement, vault.ledger, identity
            )
        except PolicyError as error:
            codes.append(error.code)
        else:
            codes.append("")
        vault.close()
    return codes


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({}, ["", "", ""]),
        (
            {"output": replace(OUTPUT, max_visits=2 * EPOCHS)},
            ["", "", "too-many-visits"],
        ),
        ({"training": replace(TRAINING, runs=2)}, ["", "", "too-many-runs"]),
        ({"train": 2}, ["", "", "uses-exhausted"]),
    ],
)
def test_the_counts_of_all_jobs(
    changes: dict[str, Any], codes: list[str], tmp_path: Path
) -> None:
    assert counted(tmp_path, **dict(changes)) == codes
