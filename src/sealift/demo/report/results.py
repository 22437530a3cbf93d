"""What was learnt: joint beside alone, over epochs, by whose rows; a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sealift.demo.folder import OWNERS
from sealift.demo.outcome import TOGETHER, Outcome
from sealift.demo.progress import VisitSeen
from sealift.demo.tasks.task import Metric
from sealift.view.charts import Bar, Curve, bars, plot
from sealift.view.markup import Child, Markup, element, join, section, table
from sealift.view.words import say_s

MODELS: Final = (*OWNERS, TOGETHER)  # each owner's own model, and the joint one


def results(outcome: Outcome) -> Iterator[Markup]:
    """The sections about results."""
    words, sample = outcome.task.words, outcome.sample
    yield section(
        "Together and alone",
        f"The joint model and each owner's own, measured on the same held-out "
        f"{words.rows} of all owners. All start from the same weights, and an owner's "
        f"own model sees the same batches of that owner's rows. {words.why_alone_is_less}",
        _bars(outcome),
        _by_owner(outcome) if outcome.progress.measured else "",
    )
    if sample is not None:
        yield section(
            sample.title,
            "Made by the model's owner, after opening the model with its key. The "
            "owners' own models have no sample: they never left the accelerator. It "
            "learnt for seconds from little text, so it has some habits of Python and "
            "none of the sense.",
            element("pre", element("b", sample.begun), sample.made),
        )


def learning(outcome: Outcome) -> Iterator[Markup]:
    """How it came to that."""
    measured = outcome.progress.measured
    if len({visit.epoch for visit in measured}) > 1:
        yield _over_epochs(measured, outcome.task.headline)
    yield _visit_by_visit(outcome.progress.trained)


def _bars(outcome: Outcome) -> Markup:
    headline, *more = outcome.task.metrics
    better = "shorter is better" if headline.lower_is_better else "longer is better"
    rows = []
    for model in outcome.models:
        said = [headline.say(model.metrics[headline.name])]
        said += [f"{each.say(model.metrics[each.name])} {each.title}" for each in more]
        rows.append(Bar(model.name, model.share, said, f"fill-{model.style}"))
    title = f"{headline.title.capitalize()}; {better}."
    return join(element("p", title, class_="axis-name"), bars(rows))


def _by_owner(outcome: Outcome) -> Markup:
    """Whose model does how well on whose rows, after the last epoch."""
    measured, headline = outcome.progress.measured, outcome.task.headline
    last = _after(measured, max(visit.epoch for visit in measured))
    parts = [[visit for visit in last if visit.holder == owner] for owner in OWNERS]
    columns = [_column(part, headline) for part in (*parts, last)]
    rows = [
        [_model_name(model), *(column[index] for column in columns)]
        for index, model in enumerate(MODELS)
    ]
    words = outcome.task.words
    has = [f"{name} {words.private_heading} {words.private[name]}" for name in OWNERS]
    return join(
        element("h3", f"{headline.title.capitalize()}, by whose held-out rows"),
        table(
            ["model", *(f"of {owner}" for owner in OWNERS), "of all"],
            rows,
            numbers_from=1,
        ),
        element("p", "; ".join(has) + ". Bold: best on those rows.", class_="small"),
    )


def _column(visits: Sequence[VisitSeen], metric: Metric) -> list[Child]:
    """A metric of every model on the rows of these visits, the best one in bold."""
    values = [_mean(visits, model, metric.name) for model in MODELS]
    told = [value for value in values if value is not None]
    best = (min if metric.lower_is_better else max)(told, default=None)
    cells: list[Child] = []
    for value in values:
        said = "not let out" if value is None else metric.brief(value)
        bold = value is not None and value == best
        cells.append(element("b", said) if bold else said)
    return cells


def _model_name(model: str) -> Markup:
    if model == TOGETHER:
        return element("b", model)
    return element("span", f"{model} alone", class_=f"ink-{model}")


def _mean(visits: Sequence[VisitSeen], model: str, metric: str) -> float | None:
    """A model's metric over the rows of these visits; None if it was not let out."""
    name = metric if model == TOGETHER else f"alone.{model}.{metric}"
    found = [(visit.rows, visit.metrics.get(name)) for visit in visits]
    told = [(rows, value) for rows, value in found if value is not None]
    if not told:
        return None
    return sum(rows * value for rows, value in told) / sum(rows for rows, _ in told)


def _after(visits: Sequence[VisitSeen], epoch: int) -> list[VisitSeen]:
    return [visit for visit in visits if visit.epoch == epoch]


def _over_epochs(measured: Sequence[VisitSeen], headline: Metric) -> Markup:
    curves = []
    for model in MODELS:
        name = model if model == TOGETHER else f"{model} alone"
        points, titles = [], []
        for epoch in sorted({visit.epoch for visit in measured}):
            value = _mean(_after(measured, epoch), model, headline.name)
            if value is not None:
                points.append((float(epoch + 1), value))
                titles.append(f"{name}, epoch {epoch + 1}: {headline.say(value)}")
        style = f"line-{'joint' if model == TOGETHER else model}"
        curves += [Curve(name, points, style, titles)] if points else []
    better = "lower is better" if headline.lower_is_better else "higher is better"
    return section(
        "Over the epochs",
        f"{headline.title.capitalize()} on everybody's held-out rows; {better}. Each of "
        "these numbers passed the agreement's output rule.",
        plot(curves, "epoch", say=headline.tick),
    )


def _visit_by_visit(visits: Sequence[VisitSeen]) -> Markup:
    """The values within a visit if they were let out, else their mean."""
    curves = []
    for owner in OWNERS:
        points, titles = [], []
        for visit in visits:
            loss = visit.metrics.get("loss")
            if visit.holder != owner or loss is None:
                continue
            values = visit.curve or (loss,)
            points += [
                (visit.number + i / len(values), v) for i, v in enumerate(values)
            ]
            train = say_s(visit.phases_s.get("train", 0.0))
            title = f"visit {visit.number}, {owner}: loss {loss:.3f}, trained {train}"
            titles += [title] * len(values)
        curves += [Curve(owner, points, f"line-{owner}", titles)] if points else []
    if not curves:
        return join()
    return section(
        "Learning, visit by visit",
        "The joint model's loss on the rows it was just trained on, as it left each "
        "visit: an owner's line jumps where the others taught something else meanwhile.",
        plot(curves, "number of the visit, which is its key epoch", floor=0.0),
    )
