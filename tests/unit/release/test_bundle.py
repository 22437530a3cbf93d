"""Code bundles: what is measured, what is refused, what a reviewer is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sealift.errors import IntegrityError, MalformedError, UnavailableError, visible
from sealift.release.agreement import code as bundle
from sealift.release.agreement.code import (
    diff_bundles,
    load_bundle,
    measure_bundle,
    read_bundle,
    review_code,
)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "net").mkdir(parents=True)
    (folder / "recipe.py").write_text("import net\n")
    (folder / "net" / "layers.py").write_text("WIDTH = 8\n")
    return folder


def test_files_by_path_without_caches(code: Path) -> None:
    (code / "net" / "__pycache__").mkdir()
    (code / "net" / "__pycache__" / "layers.pyc").write_bytes(b"x")
    assert list(read_bundle(code)) == ["net/layers.py", "recipe.py"]


def test_the_digest_does_not_depend_on_the_place(code: Path, tmp_path: Path) -> None:
    first = measure_bundle(read_bundle(code), "recipe.py")
    moved = code.rename(tmp_path / "elsewhere")
    os.utime(moved / "recipe.py", (0, 0))
    (moved / "recipe.py").chmod(0o755)
    assert measure_bundle(read_bundle(moved), "recipe.py") == first


CHANGES = {
    "changed": lambda code: (code / "recipe.py").write_text("import os\n"),
    "added": lambda code: (code / "more.py").write_text(""),
    "removed": lambda code: (code / "net" / "layers.py").unlink(),
    "renamed": lambda code: (code / "net" / "layers.py").rename(code / "layers.py"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_other_code_is_refused(code: Path, change) -> None:  # type: ignore[no-untyped-def]
    agreed = measure_bundle(read_bundle(code), "recipe.py")
    assert load_bundle(code, agreed)["recipe.py"] == b"import net\n"
    change(code)
    with pytest.raises(IntegrityError) as caught:
        load_bundle(code, agreed)
    assert caught.value.code == "code-bundle-differs"


def test_links_are_refused(code: Path) -> None:
    (code / "secret.py").symlink_to("/etc/hostname")
    with pytest.raises(MalformedError, match=r"secret\.py"):
        read_bundle(code)


def test_linked_folders_are_refused(code: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (code / "inside").symlink_to(tmp_path / "outside")
    with pytest.raises(MalformedError, match="inside"):
        read_bundle(code)


def test_special_files_are_refused(code: Path) -> None:
    os.mkfifo(code / "pipe")
    with pytest.raises(MalformedError, match="pipe"):
        read_bundle(code)


@pytest.mark.parametrize("name", ["a\nb.py", "r\u0435cipe.py", "a\x1b[2J.py"])
def test_odd_names_are_refused(code: Path, name: str) -> None:
    (code / name).write_text("")
    with pytest.raises(MalformedError) as caught:
        read_bundle(code)
    assert "\x1b" not in str(caught.value)


def test_limits(code: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bundle, "MAX_BUNDLE_BYTES", 12)
    with pytest.raises(MalformedError, match="at most 12 bytes"):
        read_bundle(code)
    (tmp_path / "empty").mkdir()
    with pytest.raises(MalformedError):
        read_bundle(tmp_path / "empty")
    with pytest.raises(UnavailableError):
        read_bundle(tmp_path / "nowhere")


def test_diff_shows_hidden_characters() -> None:
    """A line that a terminal would hide, or show in another order, is visible."""
    before = {"a.py": b"x = 1\n"}
    after = {"a.py": "x = 1\n\x1b[1A\x1b[2Ky = 2 # \u202e\n".encode()}
    lines = list(diff_bundles(before, after))
    assert r"+\x1b[1A\x1b[2Ky = 2 # \u202e" in lines
    assert all(line.isprintable() for line in lines)


def test_diff_of_files_without_line_end_and_of_binaries() -> None:
    lines = list(diff_bundles({"a": b"1\n"}, {"a": b"1"}))
    assert lines[3:] == ["-1", "+1", bundle.NO_LINE_END]
    assert list(diff_bundles({"a": b"\xff"}, {"a": b"\xfe"})) == [
        "binary file a changed"
    ]
    assert list(diff_bundles({"a": b"1"}, {"a": b"1"})) == []


def test_visible_keeps_text() -> None:
    assert visible("def f():\t# caf\u00e9") == "def f():\t# caf\u00e9"


def test_review_names_the_fate_of_each_file() -> None:
    before = measure_bundle({"r.py": b"1", "gone.py": b"2", "same.py": b"3"}, "r.py")
    files = {"r.py": b"9", "new.py": b"2", "same.py": b"3"}
    agreed = measure_bundle(files, "r.py")
    lines = review_code(agreed, before=before, files=files, files_before=None)
    fates = [line.split()[0::2] for line in lines if line.startswith("  ")]
    assert fates == [
        ["removed", "gone.py"],
        ["added", "new.py"],
        ["changed", "r.py"],
        ["unchanged", "same.py"],
    ]
