"""A folder with one subfolder per class, as torchvision's ImageFolder reads it.

Fields: ``image``, uint8 ``[channels, height, width]``, and ``label``, int64: the
subfolder's number in the order of names. The names go into the schema's description,
which stands in the agreement.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np

from sealift.data.schema.rows import Columns, Locate, bad_table, check_names
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.images import ImageForm, decode, first_form, form_of
from sealift.data.sources.source import Source, SourceOptions, unclear
from sealift.errors import UsageError

SUFFIXES: Final = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)
NAMES: Final = ("image", "label")


@dataclass(frozen=True)
class ImageFolder:
    """An opened folder; see ``TableReader``."""

    folder: Path
    form: ImageForm
    images: tuple[tuple[Path, int], ...]
    options: SourceOptions

    @property
    def rows(self) -> int:
        """How many images there are."""
        return len(self.images)

    def columns(self, rows_per_block: int) -> Iterator[Columns]:
        """See ``TableReader.columns``."""
        left = iter(self.images)
        while block := list(islice(left, rows_per_block)):
            yield {
                "image": np.stack([self._decoded(path) for path, _ in block]),
                "label": np.array([label for _, label in block], dtype=np.int64),
            }

    def locate(self, first_row: int) -> Locate:
        """See ``TableReader.locate``: the image's path in the folder."""

        def words(row: int, spec: Field, element: int) -> str:
            return f"{self._name(self.images[first_row + row][0])}, {spec.name}"

        return words

    def _decoded(self, path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
        return decode(path.read_bytes(), self.form, self.options, self._name(path))

    def _name(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def _claims(place: str) -> bool:
    path = Path(place)
    return path.is_dir() and any(True for folder in _classes(path))


def _open(place: str, schema: Schema, options: SourceOptions) -> ImageFolder:
    _refuse_fields(options)
    path = Path(place)
    check_names(list(NAMES), schema, source=path.name)
    fields = {field.name: field for field in schema.fields}
    form = form_of(fields["image"], path.name)
    return ImageFolder(path, form, tuple(_images(path)), options)


def _infer(place: str, options: SourceOptions) -> Schema:
    _refuse_fields(options)
    path = Path(place)
    images = list(_images(path))
    if not images:
        raise unclear(f"{path.name} holds no images")
    first = images[0][0]
    form = first_form(first.read_bytes(), options, first.relative_to(path).as_posix())
    classes = [_text(folder.name) for folder in _classes(path)]
    named = ", ".join(f"{label} {name}" for label, name in enumerate(classes))
    image = Field("image", "uint8", form.shape, description=f"{form.mode}, as stored")
    label = Field("label", "int64", classes=len(classes), description=named[:2000])
    return Schema((image, label))


def _images(folder: Path) -> Iterator[tuple[Path, int]]:
    for label, each in enumerate(_classes(folder)):
        found = sorted(path for path in each.rglob("*") if not path.is_dir())
        for path in found:
            if path.name.startswith("."):
                continue
            if not path.is_file():
                raise bad_table(
                    f"{path.relative_to(folder).as_posix()} cannot be read",
                    why="it is a link to nothing, or no file",
                    fix="Put the image there, or remove the name",
                )
            if path.suffix.lower() not in SUFFIXES:
                raise bad_table(
                    f"{path.relative_to(folder).as_posix()} is not an image",
                    fix=f"Remove it; images end in {', '.join(sorted(SUFFIXES))}",
                )
            yield path, label


def _classes(folder: Path) -> list[Path]:
    return sorted(
        each
        for each in folder.iterdir()
        if each.is_dir() and not each.name.startswith(".")
    )


def _text(name: str) -> str:
    """The name of a class, which goes into the schema."""
    if not name.isprintable() and any("\ud800" <= char <= "\udfff" for char in name):
        raise unclear(f"{name!a}: a folder's name is not UTF-8", fix="Rename it")
    return name


def _refuse_fields(options: SourceOptions) -> None:
    if options.fields:
        raise UsageError("--fields is not for a folder of images")


SOURCE = Source("folder with a subfolder of images per class", _claims, _open, _infer)
