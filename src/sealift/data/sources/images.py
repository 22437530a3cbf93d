"""Images to arrays, and a folder with one subfolder of images per class.

The folder is as torchvision's ImageFolder reads it. Fields: ``image``, uint8
``[channels, height, width]``, and ``label``, int64: the subfolder's name is one of its
categories, which stand in the agreement, so a number means the same class at every owner,
also at one that lacks a class. Of a schema without categories the label is the subfolder's
number in the order of names, and there must be one for each class.

Size and colours are never changed unless the user said so: an image of another size or
mode is refused with its name, before it is decoded. An image is turned as its file says that
it was taken. Formats are those listed here, by
content: Pillow knows others, and gives PostScript to an interpreter.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np

from sealift.data.schema.cells import CellRules
from sealift.data.schema.rows import Array, Columns, Locate, bad_table, check_names
from sealift.data.schema.schema import Field, Schema
from sealift.data.sources.source import SourceOptions, TableSource, require, unclear
from sealift.errors import MalformedError, UsageError, nearest

CHANNELS = {"RGB": 3, "L": 1}
FORMATS: Final = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")


# What Pillow says of bytes: it names the object that they are in, which is ours.
_UNNAMED: Final = re.compile(r"cannot identify image file <[^>]*>")


@dataclass(frozen=True, slots=True)
class ImageForm:
    """What every image is to be: mode, height, width."""

    mode: str
    height: int
    width: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return CHANNELS[self.mode], self.height, self.width


def first_form(raw: bytes, options: SourceOptions, name: str) -> ImageForm:
    """The form that the first image has, as far as the user did not say it.

    Raises:
        MalformedError: if it is no image, or of a mode that must be converted.
    """
    with _decoding(name):
        image = _decoded(raw)
        _demand_shallow(image, name)
        image = _upright(image)
    mode = options.image_mode or image.mode
    if mode not in CHANNELS:
        raise unclear(
            f"{name} has the mode {mode}, which is not supported",
            fix="Convert all with --image-mode RGB (or L)",
        )
    height, width = options.image_size or (image.height, image.width)
    return ImageForm(mode, height, width)


def form_of(field: Field, source: str) -> ImageForm:
    """The form that a schema's field says.

    Raises:
        UsageError: if such a field holds no images.
    """
    modes = {channels: mode for mode, channels in CHANNELS.items()}
    if field.dtype == "uint8" and len(field.shape) == 3 and field.shape[0] in modes:
        channels, height, width = field.shape
        return ImageForm(modes[channels], height, width)
    raise UsageError(
        f"{source}: {field.name} has images",
        why=f"the schema has {field.dtype} {list(field.shape)}",
        fix='Use dtype = "uint8" and shape = [channels, height, width], with 1 '
        "or 3 channels",
    )


def decode(raw: bytes, form: ImageForm, options: SourceOptions, name: str) -> Array:
    """One image as ``uint8`` of shape ``form.shape``.

    Raises:
        MalformedError: if it is no image, or has another size or mode.
    """
    with _decoding(name):
        image = _decoded(raw)
        _demand_form(image, form, options, name)
        image = _upright(image)
        _demand_form(image, form, options, name)  # decoding may turn it
        if image.mode != form.mode:
            image = image.convert(form.mode)
        if image.size != (form.width, form.height):
            image = image.resize((form.width, form.height))
        pixels = np.asarray(image, dtype=np.uint8)
    return pixels.reshape(form.height, form.width, -1).transpose(2, 0, 1)


def _demand_form(
    image: Any, form: ImageForm, options: SourceOptions, name: str
) -> None:
    """Demand what is not converted to be as it must be; ask before decoding."""
    _demand_shallow(image, name)
    if image.mode != form.mode and options.image_mode is None:
        raise _unlike(name, f"an image of mode {image.mode}", form.mode, "--image-mode")
    width, height = image.size[::-1] if _is_turned(image) else image.size
    if (height, width) != (form.height, form.width) and options.image_size is None:
        wanted = f"{form.height}x{form.width}"
        raise _unlike(name, f"{height}x{width}", wanted, "--image-size")


def _demand_shallow(image: Any, name: str) -> None:
    """Demand one picture of 8 bits; Pillow would take the first, and cut off brighter pixels.

    Raises:
        MalformedError: code ``bad-row``.
    """
    frames = 1 if image.format in (None, "MPO") else getattr(image, "n_frames", 1)
    if frames > 1:
        what, fix = f"has {frames:,} pictures", "Save the one that is meant"
    elif image.mode.startswith(("I", "F")) or _is_deep(image):
        what = f"has more than 8 bits for a pixel (mode {image.mode})"
        fix = "Scale it to 0 to 255 yourself, or save the images as arrays in .npz"
    else:
        return
    raise MalformedError(f"{name} {what}", fix=fix, code="bad-row")


def _is_deep(image: Any) -> bool:
    """Whether its file has more than 8 bits for a colour, of which Pillow's mode tells nothing."""
    for tile in getattr(image, "tile", ()):  # what is decoded has none
        for part in tile[3] if isinstance(tile[3], tuple) else (tile[3],):
            if isinstance(part, str) and ";16" in part:
                return True
            if image.format == "PPM" and isinstance(part, int) and part > _EIGHT_BITS:
                return True
    return False


def _says_how_it_was_held(image: Any) -> bool:
    """Of a PNG, what stands behind the pixels does not count: it is not known before."""
    return image.format != "PNG" or "exif" in image.info


def _is_turned(image: Any) -> bool:
    """Whether its file says that people see its rows as columns, as many cameras write."""
    try:
        held = _says_how_it_was_held(image)
        return held and image.getexif().get(_ORIENTATION, 1) in _LYING
    except _UNREADABLE:
        return False  # as viewers do with metadata that they cannot read


def _upright(image: Any) -> Any:
    """Decoded, as people see it: a camera says in the file how it was held."""
    held = _says_how_it_was_held(image)
    image.load()
    library = require("PIL.ImageOps", extra="images", what="reading images")
    try:
        return library.exif_transpose(image) if held else image
    except _UNREADABLE:
        return image


def _decoded(raw: bytes) -> Any:
    """Read the header; nothing is decoded yet."""
    return _library().open(io.BytesIO(raw), formats=FORMATS)


def _library() -> Any:
    return require("PIL.Image", extra="images", what="reading images")


@contextmanager
def _decoding(name: str) -> Iterator[None]:
    """What Pillow refuses, or warns of because it is so large, is refused by name."""
    library = _library()
    bombs = (library.DecompressionBombError, library.DecompressionBombWarning)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", library.DecompressionBombWarning)
            yield
    except (OSError, ValueError, SyntaxError, *bombs) as error:
        raise MalformedError(
            f"{name} cannot be read as an image",
            why=_UNNAMED.sub("its format is unknown", str(error)),
            fix="Remove it, or save it again",
            code="bad-row",
        ) from error


def _unlike(name: str, found: str, wanted: str, option: str) -> MalformedError:
    return MalformedError(
        f"{name} is {found}, and the others are {wanted}",
        fix=f"Convert all with {option} {wanted}, or convert it yourself",
        code="bad-row",
    )


SUFFIXES: Final = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)
NAMES: Final = ("image", "label")
_ORIENTATION: Final = 0x0112  # of EXIF
_LYING: Final = range(5, 9)  # its values for rows that people see as columns
_UNREADABLE: Final = (TypeError, ValueError, SyntaxError, struct.error)  # EXIF's own
_EIGHT_BITS: Final = 255


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
    names = [each.name for each in _classes(path)]
    numbers = class_numbers(names, fields["label"], path.name)
    images = tuple((image, numbers[label]) for image, label in _images(path))
    if not images:
        raise bad_table(f"{path.name} has no images")
    return ImageFolder(path, form, images, options)


def _infer(place: str, options: SourceOptions) -> Schema:
    _refuse_fields(options)
    path = Path(place)
    images = list(_images(path))
    if not images:
        raise unclear(f"{path.name} has no images")
    first = images[0][0]
    form = first_form(first.read_bytes(), options, first.relative_to(path).as_posix())
    classes = [_text(folder.name) for folder in _classes(path)]
    image = Field("image", "uint8", form.shape, description=f"{form.mode}, as stored")
    return Schema((image, class_field("label", classes, path.name)))


def class_field(name: str, classes: list[str], source: str) -> Field:
    """A field of labels whose numbers have names.

    Raises:
        MalformedError: ``no-schema``, if these cannot be categories.
    """
    rules = CellRules(categories=tuple(classes))
    try:
        return Field(name, "int64", classes=len(classes), cells=rules)
    except MalformedError as error:
        raise unclear(
            f"{source}: the names of its {len(classes):,} classes cannot be categories",
            why=error.what,
            fix="Rename them, or write a schema with classes = the number of classes",
        ) from None


def class_numbers(names: list[str], field: Field, source: str) -> list[int]:
    """Which number each class of a source has in the agreed schema.

    Raises:
        MalformedError: names a class that is in no schema; or numbers without names
            could mean other classes.
    """
    known = field.cells.categories
    if not known:
        if field.classes is not None and len(names) != field.classes:
            raise bad_table(
                f"{source} has {len(names):,} classes, and {field.name} has {field.classes:,}",
                why="the schema does not name them, so their numbers could mean others",
                fix="List the names as categories in the schema",
            )
        return [*range(len(names))]
    if not names:
        raise bad_table(
            f"{source} has no names for the classes of {field.name}",
            why="the schema numbers classes by their names, so these numbers could mean others",
            fix="Save the dataset with names: ClassLabel(names=[...])",
        )
    for name in names:
        if name not in known:
            raise bad_table(
                f"{source}: {name[:80]!r} is not a category of {field.name}",
                fix=nearest(name, known)
                or f"Known categories: {', '.join(known[:20])}",
            )
    return [known.index(name) for name in names]


def _images(folder: Path) -> Iterator[tuple[Path, int]]:
    for label, each in enumerate(_classes(folder)):
        found = sorted(path for path in each.rglob("*") if not path.is_dir())
        for path in found:
            if path.name.startswith("."):
                continue
            if not path.is_file():
                raise bad_table(
                    f"{path.relative_to(folder).as_posix()} cannot be read",
                    why="it is a broken link, or not a file",
                    fix="Put the image there, or remove the name",
                )
            if path.suffix.lower() not in SUFFIXES:
                fix = f"Remove it; images end in {', '.join(sorted(SUFFIXES))}"
                if path.suffix.lower() == ".parquet":
                    fix = "Put all Parquet files into one folder; names of folders do not become a column"
                raise bad_table(
                    f"{path.relative_to(folder).as_posix()} is not an image", fix=fix
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
        raise UsageError("--fields cannot be used with a folder of images")


SOURCE = TableSource(
    "folder with a subfolder of images per class",
    _claims,
    _open,
    _infer,
    has_names=lambda place, column: True,
)
