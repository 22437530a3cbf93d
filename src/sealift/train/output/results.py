"""What a command that has ended well says of its run: to its caller, and as one line of JSON."""

from __future__ import annotations

from typing import Any, TypedDict


class RunResult(TypedDict, total=False):
    """What `sealift train --json` prints, and `sealift.run` returns.

    Attributes:
        run: The run's folder.
        plan: How it was computed; of a plan of one process alone.
        level: How strongly the accelerator proved what it is.
        sandbox: What confined the recipe; of a plan of one process alone.
        device: What computed; of a plan of one process alone.
        agreement: Its digest; of a plan of one process alone.
        steps: Of the optimizer, in all slices; of a plan of one process alone.
        visits: Visits to owners' rows that were verified; of plans in which rows travel.
        skipped: Visits that were left out; of plans in which rows travel.
        metrics: Numbers by name, as the agreement's output rule lets them out.
        weights: Digest of the model's weights, if there is a model.
        prepared: Rows that the statistics are made of, by owner.
        statistics: Totals by name, nested, if the recipe prepares any.
        trained_less: Owners whose rows were used less often than the job plans.
        no_baselines: Why there are no numbers of models of one owner's rows alone.
    """

    run: str
    plan: str
    level: str
    sandbox: str
    device: str
    agreement: str
    steps: int
    visits: int
    skipped: int
    metrics: dict[str, float]
    weights: str
    prepared: dict[str, int]
    statistics: dict[str, Any]
    trained_less: str
    no_baselines: str


class PartResult(TypedDict, total=False):
    """What `sealift join` prints once a job has ended, and `sealift.join` returns.

    Attributes:
        rank: Number of this owner's accelerator, if it trained its own rows.
        receipts: Receipts that were kept: of rounds, or of visits to its rows.
        failed: Visits that failed.
        heldout: Numbers over this owner's held-out rows, as measured last.
        receipt: The file with the run's receipt, if the run had ended before.
    """

    rank: int
    receipts: int
    failed: int
    heldout: dict[str, float]
    receipt: str
