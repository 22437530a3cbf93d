"""What a run came to, row by row: kept while it goes on, and among its results in the end.

A row is a visit that counts, or a round of all ranks, with the numbers that the output rule
lets out of it. Until the end they lie beside the run's folder, in ``RUN.history.jsonl``,
and stay there if it fails. A run that goes on from a checkpoint makes some rows again:
what stood there from the first of them on is replaced. An owner's lie beside its receipts:
the visits to its own rows, in their order.
"""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from sealift.errors import unreadable
from sealift.events import Event, Sink, metrics_of
from sealift.release.agreement import MAX_DIGITS
from sealift.train.loop.measures import joint_numbers
from sealift.train.output.runfolder import RunFolder, RunName

LINES_NAME: Final = "history.jsonl"
TABLE_NAME: Final = "history.csv"
_KINDS: Final = (
    "visit.ended",
    "round.ended",
    "local.slice",
    "holder.measured",
    "rank.measured",
)
_PLACE: Final = ("purpose", "epoch", "visit", "table", "first_row")
_FIRST: Final = ("purpose", "epoch", "owner", "table", "rows", "seconds")
_KNOWN: Final = frozenset((*_FIRST, *_PLACE))
Row = dict[str, Any]


class History:
    """Rows of one run; a sink that passes events on.

    Args:
        folder: Of the run, or of an owner's receipts; rows lie beside it.
        name: Of the run.
        sink: Gets every event.

    Raises:
        UnavailableError: if the file beside the folder cannot be read.
    """

    def __init__(self, folder: Path, name: RunName, sink: Sink) -> None:
        self._path = folder.with_name(f"{folder.name}.{LINES_NAME}")
        self._sink, self._lock = sink, threading.Lock()
        self._header = {"job": name.job, "agreement": name.agreement.to_text()}
        header, *rows = _read(self._path) or [{}]
        self._rows = rows if header == self._header else []
        self._at = {_place(row): number for number, row in enumerate(self._rows)}
        self._written = False  # whole, as far as it goes

    def __call__(self, event: Event) -> None:
        """Take note of an event; what cannot be written now is written with the next row."""
        self._sink(event)
        row = _row_of(event)
        if row:
            with self._lock:  # visits of an owner may overlap
                self._take(row)

    def keep(self, folder: RunFolder) -> None:
        """Add both files to the run's folder.

        Raises:
            UnavailableError: if the disk is full.
        """
        folder.add(LINES_NAME, _lines(self._rows))
        folder.add(TABLE_NAME, _table_of(self._rows))

    def forget(self) -> None:
        """The folder has appeared: what lay beside it goes."""
        self._path.unlink(missing_ok=True)

    @property
    def rows(self) -> list[Row]:
        """All that counts, in order."""
        return list(self._rows)

    def heldout(self) -> dict[str, float]:
        """Numbers over the held-out rows, as each of them was measured last."""
        held = (row for row in self._rows if row["purpose"] == "heldout")
        last = {(row["table"], row["first_row"]): row for row in held}
        return numbers_over(list(last.values()))

    def _take(self, row: Row) -> None:
        again = self._at.get(_place(row))
        if again is not None:
            self._rows = self._rows[:again]
            self._at = {_place(each): n for n, each in enumerate(self._rows)}
        self._at[_place(row)] = len(self._rows)
        self._rows.append(row)
        more = self._written and again is None
        rows = [row] if more else [self._header, *self._rows]
        self._written = False
        with suppress(OSError), self._path.open("ab" if more else "wb") as file:
            file.write(_lines(rows))
            self._written = True


def numbers_over(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means over several rows of a history, and measures of what they count."""
    found = [
        (row["rows"], {n: row[n] for n in row.keys() - _KNOWN if row[n] is not None})
        for row in rows
    ]
    return dict(sorted(joint_numbers(found, MAX_DIGITS).items()))


def shown_row(row: Mapping[str, Any]) -> Row:
    """A row for people: measures stand for what is counted."""
    known = {name: value for name, value in row.items() if name in _KNOWN}
    return known | numbers_over([row])


def _row_of(event: Event) -> Row:
    """What an event adds; empty for most of them."""
    fields: Mapping[str, Any] = event.fields
    if event.kind not in _KINDS:
        return {}
    if event.kind == "visit.ended" and fields["outcome"] != "verified":
        return {}
    seconds = fields.get("seconds") or sum(_timed(fields))
    return {
        "purpose": fields["purpose"],
        "epoch": int(fields["epoch"]) + 1 if "epoch" in fields else None,
        "visit": fields.get("position", fields.get("visit")),
        "first_row": fields.get("first_row"),
        "owner": fields.get("holder", ""),
        "table": fields.get("resource", ""),
        "rows": fields["rows"],
        "seconds": round(float(seconds), 6),
        **{_column(name): each for name, each in metrics_of(fields).items()},
    }


def _column(metric: str) -> str:
    """Its own name, unless a row has another thing of that name."""
    return f"metric.{metric}" if metric in _KNOWN else metric


def _table_of(rows: list[Row]) -> bytes:
    """As CSV, with a column for each metric of any row."""
    shown = [shown_row(row) for row in rows]
    metrics = sorted({name for row in shown for name in row} - _KNOWN)
    text = io.StringIO()
    table = csv.DictWriter(
        text, (*_FIRST, *metrics), extrasaction="ignore", lineterminator="\n"
    )
    table.writeheader()
    table.writerows(shown)
    return text.getvalue().encode()


def _timed(fields: Mapping[str, Any]) -> Iterator[float]:
    return (float(value) for name, value in fields.items() if name.endswith("_s"))


def _place(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in _PLACE)


def _lines(rows: list[Row]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _read(path: Path) -> list[Row]:
    """The rows of a run before; none if there is no such file, or it breaks off."""
    try:
        found = [json.loads(line) for line in path.read_bytes().splitlines()]
        return found if all(set(_PLACE) <= set(row) for row in found[1:]) else []
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            return []
        raise unreadable(path, error) from None
    except (ValueError, TypeError):
        return []
