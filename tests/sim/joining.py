"""A meeting from Python: a host and its owners in threads of this process, to the model."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import sealift
from sealift.errors import SealiftError
from tests.sim.ownaddress import own_address

HOST = "host"
RECIPE = "kinds"


def meet(
    folder: Path, tables: Mapping[str, tuple[str, str | None]]
) -> dict[str, list[str]]:
    """Host what lies in ``host/kinds``, and have every owner join and sign.

    Args:
        folder: With a folder for the host, and one for each owner.
        tables: Names of the tables to train and to measure on, by owner.

    Returns:
        What each owner was told.

    Raises:
        SealiftError: the first owner's that cannot take part, or the host's.
    """
    said: dict[str, list[str]] = {each: [] for each in tables}
    failed: list[SealiftError] = []

    def take_part(name: str, invitation: str) -> None:
        data, heldout = tables[name]
        try:
            sealift.join(
                invitation, data, heldout=heldout, folder=folder / name,
                sign=lambda _: True, talk=said[name].append,
            )  # fmt: skip
        except SealiftError as error:
            failed.append(error)
            meeting.__exit__()  # the host would wait for it as long as it takes

    with sealift.host(
        RECIPE, [*tables], folder=folder / HOST, listen=own_address()
    ) as meeting:
        threads = [
            threading.Thread(target=take_part, args=each)
            for each in meeting.invitations.items()
        ]
        for thread in threads:
            thread.start()
        try:
            meeting.wait()
        finally:
            for thread in threads:
                thread.join()
            if failed:
                raise failed[0]
    assert (folder / HOST / "model.safetensors").stat().st_size
    return said
