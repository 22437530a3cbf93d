"""What was learnt: joint beside alone, over epochs, by whose rows; a sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sealift.lab.demo.heldout import MODELS, TOGETHER, after, epochs, mean
from sealift.lab.demo.outcome import Outcome
from sealift.lab.demo.progress import VisitSeen
from sealift.lab.demo.report.charts import Bar, Curve, bars, plot
from sealift.lab.demo.report.markup import Markup, element, join, section, table
from sealift.lab.demo.tasks.task import Metric, Sample
from sealift.lab.demo.words import say_s
from sealift.lab.worlds.folder import OWNERS


def learning(outcome: Outcome) -> Iterator[Markup]:
    """The sections about results."""
    yield _compared(outcome)
    if len(epochs(outcome.progress.measured)) > 1:
        yield _over_epochs(outcome)
    if outcome.progress.trained:
        yield _visit_by_visit(outcome.progress.trained)
    if outcome.sample is not None:
        yield _sample(outcome.sample)


def _compared(outcome: Outcome) -> Markup:
    words = outcome.task.words
    lead = (
        f"The joint model and each owner's own, measured on the same held-out "
        f"{words.rows} of all owners. All start from the same weights, and an owner's "
        f"own model sees the same batches of that owner's rows. {words.why_alone_is_less}"
    )
    return section("Together and alone", lead, _bars(outcome), *_by_owner(outcome))


def _bars(outcome: Outcome) -> Markup:
    headline, *more = outcome.task.metrics
    models = [
        *((f"{owner} alone", outcome.alone[owner], owner) for owner in OWNERS),
        (TOGETHER, outcome.together, "joint"),
    ]
    full = headline.full_scale([found[headline.name] for _, found, _ in models])
    better = "shorter is better" if headline.lower_is_better else "longer is better"
    return join(
        element("p", f"{headline.title.capitalize()}; {better}.", class_="axis-name"),
        bars(
            Bar(
                name,
                found[headline.name] / full,
                [
                    headline.say(found[headline.name]),
                    *(f"{each.say(found[each.name])} {each.title}" for each in more),
                ],
                f"fill-{style}",
            )
            for name, found, style in models
        ),
    )


def _by_owner(outcome: Outcome) -> Iterator[Markup]:
    """Whose model does how well on whose rows, after the last epoch."""
    measured, headline = outcome.progress.measured, outcome.task.headline
    if not measured:
        return
    last = after(measured, epochs(measured)[-1])
    parts = [[visit for visit in last if visit.holder == owner] for owner in OWNERS]
    words = outcome.task.words
    yield element("h3", f"{headline.title.capitalize()}, by whose held-out rows")
    headings = ["model", *(f"of {owner}" for owner in OWNERS), "of all"]
    columns = [_column(part, headline) for part in [*parts, last]]
    rows = [
        [_model_name(model), *(column[index] for column in columns)]
        for index, model in enumerate(MODELS)
    ]
    yield table(headings, rows, numbers_from=1)
    items = [
        f"{owner} {words.private_heading} {words.private[owner]}" for owner in OWNERS
    ]
    yield element("p", "; ".join(items) + ". Bold: best on those rows.", class_="small")


def _column(visits: Sequence[VisitSeen], metric: Metric) -> list[Markup | str]:
    values = [mean(visits, model, metric.name) for model in MODELS]
    told = [value for value in values if value is not None]
    best = (min if metric.lower_is_better else max)(told, default=None)
    return [_cell(value, metric, best=value == best) for value in values]


def _cell(value: float | None, metric: Metric, *, best: bool) -> Markup | str:
    if value is None:
        return "not let out"
    return element("b", metric.brief(value)) if best else metric.brief(value)


def _model_name(model: str) -> Markup:
    if model == TOGETHER:
        return element("b", model)
    return element("span", f"{model} alone", class_=f"ink-{model}")


def _over_epochs(outcome: Outcome) -> Markup:
    headline = outcome.task.headline
    curves = [_epoch_curve(outcome, model, headline) for model in MODELS]
    better = "lower is better" if headline.lower_is_better else "higher is better"
    return section(
        "Over the epochs",
        f"{headline.title.capitalize()} on everybody's held-out rows; {better}. Each of "
        "these numbers passed the agreement's output rule.",
        plot([curve for curve in curves if curve.points], "epoch", say=headline.tick),
    )


def _epoch_curve(outcome: Outcome, model: str, metric: Metric) -> Curve:
    measured = outcome.progress.measured
    found = [
        (e + 1, mean(after(measured, e), model, metric.name)) for e in epochs(measured)
    ]
    points = [(float(epoch), value) for epoch, value in found if value is not None]
    name = model if model == TOGETHER else f"{model} alone"
    titles = [
        f"{name}, epoch {epoch:g}: {metric.say(value)}" for epoch, value in points
    ]
    return Curve(
        name, points, f"line-{'joint' if model == TOGETHER else model}", titles
    )


def _visit_by_visit(visits: Sequence[VisitSeen]) -> Markup:
    curves = []
    for owner in OWNERS:
        own = [v for v in visits if v.holder == owner and "loss" in v.metrics]
        points = [point for visit in own for point in _losses(visit)]
        titles = [_say(visit) for visit in own for _ in _losses(visit)]
        if points:
            curves.append(Curve(owner, points, f"line-{owner}", titles))
    if not curves:
        return join()
    return section(
        "Learning, visit by visit",
        "The joint model's loss on the rows it was just trained on, as it left each "
        "visit: an owner's line jumps where the others taught something else meanwhile.",
        plot(curves, "number of the visit, which is its key epoch", floor=0.0),
    )


def _losses(visit: VisitSeen) -> list[tuple[float, float]]:
    """The values within the visit if they were let out, else their mean."""
    values = visit.curve or (visit.metrics["loss"],)
    return [
        (visit.number + index / len(values), value)
        for index, value in enumerate(values)
    ]


def _say(visit: VisitSeen) -> str:
    train = say_s(visit.phases_s.get("train", 0.0))
    loss = visit.metrics["loss"]
    return f"visit {visit.number}, {visit.holder}: loss {loss:.3f}, trained {train}"


def _sample(sample: Sample) -> Markup:
    return section(
        sample.title,
        "Made by the model's owner, after opening the model with its key. The owners' "
        "own models have no sample: they never left the accelerator. It learnt for seconds "
        "from little text, so it has some habits of Python and none of the sense.",
        element("pre", element("b", sample.begun), sample.made),
    )
