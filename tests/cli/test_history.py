"""A run's rows: kept while it goes on, replaced where it goes on, whole in the end."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from sealift.events import Event, discard
from sealift.ids import Digest
from sealift.train.output.history import History
from sealift.train.output.runfolder import RunFolder, RunName

NAME = RunName("digits", Digest.of(b"agreement"))


def visit(position: int, epoch: int = 0, **changes: Any) -> Event:
    fields = {
        "outcome": "verified", "purpose": "train", "epoch": epoch, "position": position,
        "holder": "north", "resource": "north-train", "rows": 32, "load_s": 0.25,
        "train_s": 0.5, "metric.loss": 0.5,
    }  # fmt: skip
    return Event("visit.ended", fields | changes)


def beside(folder: Path) -> list[dict[str, Any]]:
    path = folder.with_name(f"{folder.name}.history.jsonl")
    header, *rows = map(json.loads, path.read_text().splitlines())
    assert header["job"] == "digits"
    return rows


def test_rows_end_up_among_the_results(tmp_path: Path) -> None:
    seen: list[Event] = []
    with RunFolder(tmp_path / "run", NAME) as folder:
        history = History(folder.path, NAME, seen.append)
        round_ = {"purpose": "heldout", "epoch": 0, "rows": 9, "seconds": 2.0}
        for event in (
            visit(0),
            visit(1, outcome="failed"),
            Event("visit.phase", {"phase": "load"}),
            Event("round.ended", {**round_, "metric.accuracy": 0.75}),
        ):
            history(event)
        assert len(seen) == 4
        assert len(beside(tmp_path / "run")) == 2
        history.keep(folder)
        folder.appear()
        history.forget()
    lines = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    train, heldout = map(json.loads, lines)
    assert (train["epoch"], train["owner"], train["seconds"]) == (1, "north", 0.75)
    assert (train["loss"], heldout["accuracy"], heldout["owner"]) == (0.5, 0.75, "")
    with (tmp_path / "run" / "history.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [each["purpose"] for each in rows] == ["train", "heldout"]
    assert (rows[0]["loss"], rows[0]["accuracy"]) == ("0.5", "")
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("again", [0, 2, 3])
def test_a_run_that_goes_on_replaces_what_it_makes_again(
    tmp_path: Path, again: int
) -> None:
    place = tmp_path / "run"
    with RunFolder(place, NAME) as folder:
        history = History(folder.path, NAME, discard)
        for position in range(3):
            history(visit(position))
    with RunFolder(place, NAME) as folder:  # from a checkpoint, or from the beginning
        history = History(folder.path, NAME, discard)
        for position in range(again, 4):
            history(visit(position, **{"metric.loss": 0.25}))
    losses = [row["loss"] for row in beside(place)]
    assert losses == [0.5] * again + [0.25] * (4 - again)


def test_another_runs_rows_do_not_count(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with RunFolder(place, NAME) as folder:
        History(folder.path, NAME, discard)(visit(0))
    other = RunName("digits", Digest.of(b"its successor"))
    with RunFolder(place, other) as folder:
        History(folder.path, other, discard)(visit(7))
    assert [row["visit"] for row in beside(place)] == [7]


def test_a_file_that_breaks_off_is_begun_again(tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.with_name("run.history.jsonl").write_text('{"job": "digits"')
    with RunFolder(place, NAME) as folder:
        History(folder.path, NAME, discard)(visit(0))
    assert len(beside(place)) == 1


def test_an_owners_numbers_are_the_last_of_its_held_out_rows(tmp_path: Path) -> None:
    history = History(tmp_path / "receipts", NAME, discard)
    for number, (first, accuracy) in enumerate(((0, 0.1), (10, 0.5), (0, 0.9))):
        fields = {"visit": str(number), "purpose": "heldout", "first_row": first}
        rest = {"resource": "north-heldout", "rows": 10, "metric.accuracy": accuracy}
        history(Event("holder.measured", fields | rest))
    assert history.heldout() == {"accuracy": pytest.approx(0.7)}
    assert [row["visit"] for row in beside(tmp_path / "receipts")] == ["0", "1", "2"]


def test_a_metric_hides_nothing_of_a_row(tmp_path: Path) -> None:
    history = History(tmp_path / "run", NAME, discard)
    history(visit(0, **{"metric.rows": 1.5}))
    (row,) = beside(tmp_path / "run")
    assert (row["rows"], row["metric.rows"]) == (32, 1.5)


def test_what_a_full_disk_refused_is_written_later(tmp_path: Path) -> None:
    place = tmp_path / "absent" / "run"
    history = History(place, NAME, discard)
    history(visit(0))  # cannot be written
    place.parent.mkdir()
    for position in (1, 2):
        history(visit(position))
    assert [row["visit"] for row in beside(place)] == [0, 1, 2]
