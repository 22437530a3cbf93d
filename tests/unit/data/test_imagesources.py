"""Images, in folders by class and in saved datasets."""

from __future__ import annotations

import os
import struct
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageFile

from sealift.data.schema.cells import CellRules
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.source import NO_OPTIONS, SourceOptions
from sealift.data.sources.table import infer_schema, tell_numbers
from sealift.errors import MalformedError
from tests.unit.data.sourcefiles import (
    pictures,
    read,
    save_to_disk,
)


def test_a_folder_of_images(tmp_path: Path) -> None:
    place = pictures(tmp_path)
    schema = infer_schema(str(place))
    assert schema.fields[0] == Field(
        "image", "uint8", (3, 4, 5), description="RGB, as stored"
    )
    assert schema.fields[1].classes == 2
    assert schema.fields[1].cells.categories == ("cat", "dog")
    found = read(str(place), schema)
    assert found["label"].tolist() == [0, 0, 0, 1, 1, 1]
    last = np.asarray(Image.open(place / "dog" / "2.png"))
    np.testing.assert_array_equal(found["image"][5], last.transpose(2, 0, 1))


def test_images_are_changed_only_when_told(tmp_path: Path) -> None:
    place = pictures(tmp_path)
    schema = infer_schema(str(place))
    Image.new("RGB", (9, 9)).save(place / "dog" / "0.png")
    with pytest.raises(MalformedError, match=r"dog/0.png is 9x9.*4x5.*--image-size"):
        read(str(place), schema)
    Image.new("L", (5, 4)).save(place / "dog" / "0.png")
    with pytest.raises(MalformedError, match=r"dog/0.png is an image of mode L.*RGB"):
        read(str(place), schema)
    options = SourceOptions(image_size=(6, 2), image_mode="L")
    schema = infer_schema(str(place), options)
    assert schema.fields[0].shape == (1, 6, 2)
    assert read(str(place), schema, options)["image"].shape == (6, 1, 6, 2)


def test_an_image_is_turned_as_its_camera_was_held(tmp_path: Path) -> None:
    place = pictures(tmp_path)
    schema = infer_schema(str(place))
    lying = Image.open(place / "dog" / "1.png").transpose(Image.Transpose.ROTATE_90)
    tags = lying.getexif()
    tags[0x0112] = 6  # to be turned back
    lying.save(place / "dog" / "2.png", exif=tags)
    found = read(str(place), schema)["image"]
    np.testing.assert_array_equal(found[5], found[4])
    lying.save(place / "cat" / "0.png", exif=tags)
    assert infer_schema(str(place)) == schema


@pytest.mark.parametrize(
    "exif",
    [
        b"II*\0",
        b"Exif\0\0MM\0",
        b"not exif",
        # An orientation that is a text.
        b"Exif\0\0"
        + struct.pack("<2sHIHHHI4sI", b"II", 42, 8, 1, 0x0112, 2, 2, b"6", 0),
    ],
)
def test_damaged_words_of_a_camera_do_not_stop_a_folder(
    tmp_path: Path, exif: bytes
) -> None:
    place = pictures(tmp_path)
    schema = infer_schema(str(place))
    image = Image.open(place / "dog" / "1.png").convert("RGB")
    image.save(place / "dog" / "0.png", exif=exif)
    found = read(str(place), schema)["image"]
    np.testing.assert_array_equal(found[3], found[4])


@pytest.mark.parametrize("suffix", ["png", "ppm"])
def test_sixteen_bits_of_a_colour_are_refused(tmp_path: Path, suffix: str) -> None:
    place = pictures(tmp_path)
    schema = infer_schema(str(place))
    deep = np.full((4, 5, 3), 4000, ">u2").tobytes()
    raw = b"P6 5 4 65535\n" + deep
    if suffix == "png":
        lines = b"".join(b"\0" + deep[at : at + 30] for at in range(0, 120, 30))
        raw = b"\x89PNG\r\n\x1a\n"
        for kind, body in (
            (b"IHDR", struct.pack(">IIBBBBB", 5, 4, 16, 2, 0, 0, 0)),
            (b"IDAT", zlib.compress(lines)),
            (b"IEND", b""),
        ):
            crc = zlib.crc32(kind + body)
            raw += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)
    (place / "cat" / f"0.{suffix}").write_bytes(raw)
    with pytest.raises(MalformedError, match="more than 8 bits"):
        read(str(place), schema)


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (Image.new("I;16", (5, 4), 4000), "more than 8 bits"),
        (Image.new("F", (5, 4), 0.5), "more than 8 bits"),
        (Image.new("RGB", (5, 4)), "2 pictures"),
    ],
)
def test_what_would_be_cut_off_is_refused(
    tmp_path: Path, image: Image.Image, words: str
) -> None:
    place = pictures(tmp_path)
    options = SourceOptions(image_mode="L")
    schema = infer_schema(str(place), options)
    more = [Image.new("RGB", (5, 4), "red")] if image.mode == "RGB" else []
    image.save(place / "cat" / "0.tif", save_all=True, append_images=more)
    with pytest.raises(MalformedError, match=f"cat/0.tif has {words}"):
        read(str(place), schema, options)
    (place / "cat" / "0.png").unlink()
    with pytest.raises(MalformedError, match=f"cat/0.tif has {words}"):
        infer_schema(str(place), options)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("dog/0.png", b"\x89PNG but no more", "dog/0.png cannot be read"),
        ("dog/notes.txt", b"x", "dog/notes.txt is not an image"),
        ("dog/0.parquet", b"x", "Put all Parquet files into one folder"),
    ],
)
def test_what_is_no_image_is_named(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    place = pictures(tmp_path)
    schema = infer_schema(str(place))
    (place / name).write_bytes(content)
    with pytest.raises(MalformedError, match=words):
        read(str(place), schema)


def test_images_in_a_saved_dataset(tmp_path: Path) -> None:
    place = pictures(tmp_path)
    files = sorted(place.rglob("*.png"))
    stored = pa.array([{"bytes": path.read_bytes(), "path": None} for path in files])
    table = pa.table({"img": stored, "label": pa.array([0, 0, 0, 1, 1, 1])})
    features = {
        "img": {"_type": "Image"},
        "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
    }
    saved = save_to_disk(tmp_path / "saved", table, features)
    schema = infer_schema(saved)
    assert schema.fields[0].shape == (3, 4, 5)
    assert schema.fields[1] == Field(
        "label", "int64", classes=2, cells=CellRules(categories=("cat", "dog"))
    )
    whole = infer_schema(str(place))
    np.testing.assert_array_equal(
        read(saved, schema)["img"], read(str(place), whole)["image"]
    )


SCRIPT = (
    b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 4\n%%EndComments\nshowpage\n%%EOF\n"
)


def test_a_script_under_an_images_name_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pillow goes by content, and gives PostScript to Ghostscript."""
    started: list[object] = []

    def start(*args: object, **_: object) -> None:
        started.append(args)
        raise OSError

    monkeypatch.setattr(subprocess, "check_call", start)
    monkeypatch.setattr(subprocess, "Popen", start)
    place = pictures(tmp_path)
    schema = infer_schema(str(place))
    (place / "dog" / "0.png").write_bytes(SCRIPT)
    with pytest.raises(MalformedError, match=r"dog/0.png cannot be read"):
        read(str(place), schema)
    assert not started


@pytest.mark.parametrize(("told", "width"), [(None, 8_000), ((4, 5), 10_000)])
def test_a_size_that_a_file_announces_is_not_believed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    told: tuple[int, int] | None,
    width: int,
) -> None:
    """Without --image-size no other size is decoded; with it none too large."""
    place = pictures(tmp_path)
    options = SourceOptions(image_size=told)
    schema = infer_schema(str(place), options)
    raw = bytearray((place / "dog" / "0.png").read_bytes())
    raw[16:24] = struct.pack(">II", width, 9_000)
    raw[29:33] = zlib.crc32(raw[12:29]).to_bytes(4, "big")
    (place / "dog" / "0.png").write_bytes(raw)
    decoded: list[tuple[int, int]] = []
    load = ImageFile.ImageFile.load

    def count(image: ImageFile.ImageFile) -> object:
        decoded.append(image.size)
        return load(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", count)
    with pytest.raises(
        MalformedError, match=r"dog/0.png (is 9000x8000|cannot be read)"
    ):
        read(str(place), schema, options)
    assert set(decoded) == {(5, 4)}


def test_a_class_whose_name_is_no_text(tmp_path: Path) -> None:
    place = pictures(tmp_path)
    os.rename(place / "dog", os.fsencode(place) + b"/d\xff")
    with pytest.raises(MalformedError, match=r"a folder's name is not UTF-8") as caught:
        infer_schema(str(place))
    assert caught.value.code == "no-schema"


def test_an_owner_that_lacks_a_class_has_the_others_numbers(tmp_path: Path) -> None:
    place = pictures(tmp_path)
    schema = infer_schema(str(place))
    for each in (place / "cat").iterdir():
        each.unlink()
    (place / "cat").rmdir()
    assert read(str(place), schema)["label"].tolist() == [1, 1, 1]
    (place / "dog").rename(place / "Dog")
    with pytest.raises(MalformedError, match=r"'Dog' is not a category of label.*dog"):
        read(str(place), schema)


def test_classes_without_names_are_not_the_categories_of_a_schema(
    tmp_path: Path,
) -> None:
    """Their numbers could be swapped, and nothing would show it."""
    table = pa.table({"label": pa.array([0, 1, 1])})
    features = {"label": {"names": ["dog", "cat"], "_type": "ClassLabel"}}
    rules = CellRules(categories=("cat", "dog"))
    schema = Schema((Field("label", "int64", classes=2, cells=rules),))
    named = save_to_disk(tmp_path / "named", table, features)
    assert read(named, schema)["label"].tolist() == [1, 0, 0]
    assert tell_numbers(named, schema, NO_OPTIONS) == []
    features["label"].pop("names")
    nameless = save_to_disk(tmp_path / "nameless", table, features)
    with pytest.raises(MalformedError, match=r"nameless has no names .* of label"):
        read(nameless, schema)


def test_a_column_of_plain_numbers_is_said_to_mean_the_schemas_categories(
    tmp_path: Path,
) -> None:
    rules = CellRules(categories=("cat", "a dog"))
    schema = Schema((Field("label", "int64", classes=2, cells=rules),))
    labels = np.array([1, 0])
    np.savez(tmp_path / "t.npz", label=labels)
    np.save(tmp_path / "t.npy", labels)
    table = pa.table({"label": labels})
    pq.write_table(table, tmp_path / "t.parquet")
    plain = {"label": {"dtype": "int64", "_type": "Value"}}
    saved = save_to_disk(tmp_path / "saved", table, plain)
    line = 'label: 0 = cat, 1 = "a dog", as the schema numbers them'
    for place in (*sorted(tmp_path.glob("t.*")), saved):
        assert tell_numbers(place, schema, NO_OPTIONS) == [line]
    (tmp_path / "t.csv").write_text("label\ncat\n")
    assert tell_numbers(tmp_path / "t.csv", schema, NO_OPTIONS) == []
    many = CellRules(categories=tuple(f"c{n}" for n in range(1_500)))
    wide = Schema((Field("label", "int64", classes=1_500, cells=many),))
    (long,) = tell_numbers(tmp_path / "t.npz", wide, NO_OPTIONS)
    assert long.endswith("19 = c19, and 1,480 more, as the schema numbers them")


def test_numbers_without_names_need_every_class(tmp_path: Path) -> None:
    place = pictures(tmp_path)
    image = infer_schema(str(place)).fields[0]
    schema = Schema((image, Field("label", "int64", classes=3)))
    with pytest.raises(MalformedError, match=r"has 2 classes, and label has 3"):
        read(str(place), schema)


def test_a_folder_without_an_image(tmp_path: Path) -> None:
    place = pictures(tmp_path)
    schema = infer_schema(str(place))
    for each in place.glob("*/*.png"):
        each.unlink()
    with pytest.raises(MalformedError, match="has no images"):
        read(str(place), schema)
