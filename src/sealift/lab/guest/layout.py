"""Where things lie inside the guest; known to its builder, its agent and its acts."""

from __future__ import annotations

from typing import Final

PYTHON_VERSION: Final = "3.11"
PYTHON: Final = f"/usr/bin/python{PYTHON_VERSION}"
BUSYBOX: Final = "/bin/busybox"
LIBRARIES: Final = "/lib/x86_64-linux-gnu"
LOADER: Final = "/lib64/ld-linux-x86-64.so.2"
LIBRARY: Final = f"{LIBRARIES}/libm.so.6"
MODULE: Final = "/modules/crc7.ko"  # in no reference value: loading it is a bad act
CODE: Final = "/opt/sealift"
PACKED_BUNDLE: Final = "/packed/recipe.zip"  # copied to BUNDLE by init
BUNDLE: Final = "/bundle/recipe.zip"  # on a ramfs, whose every read is measured
STATE: Final = "/run/sealift"
PORT: Final = "/dev/ttyS1"
UNLISTED: Final = "/tmp/busybox-unlisted"  # noqa: S108 - the guest is ours alone
UNLISTED_LIBRARY: Final = "/tmp/libunlisted.so"  # noqa: S108
COMMAND_LINE: Final = "console=ttyS0 quiet panic=-1 lockdown=integrity"
