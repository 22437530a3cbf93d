"""What roles write down for whoever looks at a run, and how it is read on."""

from __future__ import annotations

import threading
from pathlib import Path

from sealift.events import Event, discard, emit
from sealift.train.job.journal import BEGAN, ENDED, Journal, JournalReader, journal_of


def journal(folder: Path, by: str = "orchestrator") -> Journal:
    return Journal(journal_of(folder, "digits"), by, discard, lambda: 1_800_000_000.5)


def read(folder: Path) -> list[str]:
    return [each.kind for each in JournalReader(journal_of(folder, "digits")).read()]


def test_what_is_told_is_passed_on_and_written_down(tmp_path: Path) -> None:
    passed: list[Event] = []
    path = journal_of(tmp_path, "digits")
    kept = Journal(path, "holder", passed.append, lambda: 1_800_000_000.5)
    kept.begin(job="digits")
    emit(kept, "holder.measured", rows=3, resource="north-train")
    emit(kept, "holder.frame", sealed_bytes=1)  # thousands of these
    kept.end("finished")
    assert [each.kind for each in passed] == ["holder.measured", "holder.frame"]
    found = JournalReader(path).read()
    assert [each.kind for each in found] == [BEGAN, "holder.measured", ENDED]
    assert {each.by for each in found} == {"holder"}
    assert found[1].fields == {"rows": 3, "resource": "north-train"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_reader_goes_on_where_it_stopped(tmp_path: Path) -> None:
    reader = JournalReader(journal_of(tmp_path, "digits"))
    assert reader.read() == []  # not there yet
    kept = journal(tmp_path)
    emit(kept, "a")
    assert [each.kind for each in reader.read()] == ["a"]
    emit(kept, "b")
    assert [each.kind for each in reader.read()] == ["b"]
    assert reader.read() == []


def test_a_line_that_is_half_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = journal_of(tmp_path, "digits")
    emit(journal(tmp_path), "a")
    whole = path.read_bytes()
    reader = JournalReader(path)
    path.write_bytes(whole[:-5])
    assert reader.read() == []
    with path.open("ab") as file:
        file.write(whole[-5:])
    assert [each.kind for each in reader.read()] == ["a"]


def test_another_file_in_its_place_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = journal_of(tmp_path, "digits")
    emit(journal(tmp_path), "a")
    reader = JournalReader(path)
    reader.read()
    path.unlink()
    emit(journal(tmp_path), "b")
    assert [each.kind for each in reader.read()] == ["b"]


def test_lines_that_are_none_are_left_out(tmp_path: Path) -> None:
    path = journal_of(tmp_path, "digits")
    path.write_bytes(
        b'\xff\n[]\n{}\nnull\n{"at_s":"x","by":1,"kind":2,"fields":3}\n'
        b'{"at_s":1,"by":"a","kind":"k","fields":[]}\n'
        b'{"at_s":1,"by":"a","kind":"right","fields":{}}\n'
    )
    assert read(tmp_path) == ["right"]


def test_several_roles_write_whole_lines(tmp_path: Path) -> None:
    def write(by: str) -> None:
        kept = journal(tmp_path, by)
        for _ in range(200):
            emit(kept, "k", text="x" * 300)

    threads = [threading.Thread(target=write, args=(f"r{n}",)) for n in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(read(tmp_path)) == 800


def test_what_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    passed: list[Event] = []
    place = tmp_path / "none" / "digits.journal.jsonl"
    emit(Journal(place, "holder", passed.append, lambda: 0.0), "a")
    assert [each.kind for each in passed] == ["a"]


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("kept")
    journal_of(tmp_path, "digits").symlink_to(target)
    emit(journal(tmp_path), "a")
    assert target.read_text() == "kept"
