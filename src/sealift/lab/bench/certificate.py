"""A certificate for the TLS arms, made by the openssl program: nothing else trusts it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sealift.errors import UnavailableError


def make_certificate(folder: Path, host: str = "localhost") -> Path:
    """A file with a self-signed certificate for ``host``, of a day, and its key.

    Raises:
        UnavailableError: if there is no such program.
    """
    path, key = folder / "tls.pem", folder / "tls.key"
    words = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
        "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={host}",
        "-addext", f"subjectAltName=DNS:{host}",
        "-keyout", str(key), "-out", str(path), "-days", "1",
    ]  # fmt: skip
    try:
        subprocess.run(words, check=True, capture_output=True)  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnavailableError(
            "no certificate for the TLS arm", why=str(error)[:200]
        ) from None
    path.write_bytes(path.read_bytes() + key.read_bytes())
    return path
