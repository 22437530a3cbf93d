"""Images to arrays of bytes, ``(channels, height, width)`` (extra ``images``).

Size and colours are never changed unless the user said so: an image of another size or
mode is refused with its name, before it is decoded. Formats are those listed here, by
content: Pillow knows others, and gives PostScript to an interpreter.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from sealift.data.schema.rows import Array
from sealift.data.schema.schema import Field
from sealift.data.sources.source import SourceOptions, require, unclear
from sealift.errors import MalformedError, UsageError

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
        image = _open(raw)
        image.load()
    mode = options.image_mode or image.mode
    if mode not in CHANNELS:
        raise unclear(
            f"{name} is of mode {mode}", fix="Convert all with --image-mode RGB (or L)"
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
        f"{source}: {field.name} holds images",
        why=f"the schema says {field.dtype} {list(field.shape)}",
        fix='It is dtype = "uint8" and shape = [channels, height, width], 1 or 3 channels',
    )


def decode(raw: bytes, form: ImageForm, options: SourceOptions, name: str) -> Array:
    """One image as ``uint8`` of shape ``form.shape``.

    Raises:
        MalformedError: if it is no image, or has another size or mode.
    """
    with _decoding(name):
        image = _open(raw)
        _demand_form(image, form, options, name)
        image.load()
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
    if image.mode != form.mode and options.image_mode is None:
        raise _unlike(name, f"of mode {image.mode}", form.mode, "--image-mode")
    if image.size != (form.width, form.height) and options.image_size is None:
        wanted = f"{form.height}x{form.width}"
        raise _unlike(name, f"{image.height}x{image.width}", wanted, "--image-size")


def _open(raw: bytes) -> Any:
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
            f"{name} is not an image that can be read",
            why=_UNNAMED.sub("it is of no kind that is known", str(error)),
            fix="Remove it, or save it again",
            code="bad-row",
        ) from error


def _unlike(name: str, found: str, wanted: str, option: str) -> MalformedError:
    return MalformedError(
        f"{name} is {found}, not {wanted}",
        fix=f"Convert all with {option} {wanted}, or convert it yourself",
        code="bad-row",
    )
