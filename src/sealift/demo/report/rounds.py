"""Rounds of several accelerators: what they came to, and what was verified afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from sealift.demo.outcome import Outcome
from sealift.demo.progress import RoundSeen
from sealift.demo.report.records import kept_records
from sealift.demo.tasks.task import Metric
from sealift.view.charts import Curve, plot
from sealift.view.markup import Markup, bullets, section
from sealift.view.words import say_s


def rounds(outcome: Outcome) -> Iterator[Markup]:
    """The sections about them."""
    seen = outcome.progress.rounds
    trained = [each for each in seen if each.purpose == "train"]
    measured = [each for each in seen if each.purpose == "heldout"]
    middle = median(each.seconds for each in trained)
    yield section(
        "Round by round",
        f"Mean loss over all owners' rows; a round took {say_s(middle)} at the median, "
        "local training, encryption and agreement included.",
        plot([_losses(trained)], "round", floor=0.0),
    )
    yield section(
        "Results on the held-out rows of all owners",
        "Each owner's accelerator measured the joint model on its own rows. The agreement's "
        "output rule allows these numbers.",
        plot([_measured(measured, outcome.task.headline)], "after round"),
    )
    verdict = outcome.verdict
    lines = [
        f"{'valid' if good else 'NOT VALID'}: {line}" for good, line in verdict.checks
    ]
    yield section(
        "What was verified", "", bullets([*lines, *verdict.failures], class_="plain")
    )
    yield section(
        "The records",
        "Each owner's broker logged each key before its release; the manifest has the signed "
        "heads of all logs. Each owner keeps its accelerator's receipts.",
        kept_records(outcome),
    )


def _losses(trained: Sequence[RoundSeen]) -> Curve:
    points = [(float(e.epoch + 1), e.metrics.get("loss", 0.0)) for e in trained]
    titles = [f"round {int(x)}: loss {y:.3f}" for x, y in points]
    return Curve("together", points, "line-joint", titles)


def _measured(measured: Sequence[RoundSeen], headline: Metric) -> Curve:
    points = [(float(e.epoch + 1), e.metrics.get(headline.name, 0.0)) for e in measured]
    titles = [f"round {int(x)}: {headline.say(y)}" for x, y in points]
    return Curve("together", points, "line-joint", titles)
