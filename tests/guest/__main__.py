"""``python -m tests.guest [--fresh]``: build the guest's image."""

from __future__ import annotations

import sys

from sealift.errors import SealiftError
from tests.guest.image import build_image, guest_folder


def main(arguments: list[str]) -> int:
    """Build it if that is needed, and say where it lies."""
    try:
        image = build_image(guest_folder(), fresh="--fresh" in arguments)
    except SealiftError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    size = sum(each.stat().st_size for each in image.folder.iterdir()) / 1e6
    sys.stdout.write(f"guest: {image.folder}, {size:.0f} MB, {image.manifest.kernel}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
