"""Several parties get the model: a key file for each, and no key for anybody else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sealift.crypto.sign import SigningKey
from sealift.data.schedule.visits import Stop
from sealift.errors import AuthenticationError, UnavailableError
from sealift.ids import Digest
from sealift.train.loop.states import TensorBytes
from sealift.train.output.handout import Handout
from sealift.train.output.sealing import key_name, open_model, seal_model
from tests.worlds.consortium import OUTPUT, Consortium, make_consortium

MODEL = {"a": TensorBytes("U8", (4,), memoryview(b"abcd"))}
INSTANCE = SigningKey.generate()


def made(consortium: Consortium) -> Handout:
    nothing: Any = None
    return Handout(
        consortium.verified(),
        SimpleNamespace(instance=INSTANCE),  # type: ignore[arg-type]
        "job",
        nothing,
        proof=nothing,
        heads=tuple,
        plan="travel",
        settings=nothing,
        sandbox="",
        device=lambda: "cpu",
    )


def hand_out(consortium: Consortium, folder: Path) -> set[str]:
    """Write what the accelerator hands out; the names of the files."""
    handout = made(consortium)
    training = SimpleNamespace(state=lambda: MODEL, digest=lambda: Digest.of(b"m"))
    for output in handout._outputs(training, seal_model(MODEL)):  # type: ignore[arg-type]
        with (folder / output.name).open("ab") as file:
            file.write(output.part)
    return {path.name for path in folder.iterdir()}


def test_means_over_parts_are_rounded() -> None:
    """A mean of rounded numbers has more places than they have."""
    plain = make_consortium()
    rule = replace(OUTPUT, audience="everyone", digits=2)
    handout = made(replace(plain, agreement=replace(plain.agreement, output=rule)))
    for first, rows, loss in ((0, 10, 0.25), (10, 20, 0.5)):
        stop = Stop(0, "ada", "a", "heldout", first, rows)
        handout.heldout.keep(stop, {"loss": loss})
    assert handout._metrics() == {"loss": 0.42}


def shared(*names: str) -> Consortium:
    first = make_consortium()
    output = replace(OUTPUT, model_to=names)
    return replace(first, agreement=replace(first.agreement, output=output))


def opened(consortium: Consortium, folder: Path, name: str, recipients: Any) -> bytes:
    private = consortium.identities[name].hpke
    file = key_name(name, recipients)
    return open_model(folder, private, INSTANCE.public_key, file)


def test_each_of_them_opens_it(tmp_path: Path) -> None:
    consortium = shared("bern", "ada")
    files = hand_out(consortium, tmp_path)
    assert files == {"model.sealed", "model.key.json", "model.key.ada.json"}
    found = {opened(consortium, tmp_path, n, ("bern", "ada")) for n in ("ada", "bern")}
    assert len(found) == 1


def test_nobody_else_does(tmp_path: Path) -> None:
    """The model owner too, where the agreement gives the model to others."""
    consortium = shared("bern", "ada")
    hand_out(consortium, tmp_path)
    with pytest.raises(UnavailableError):
        opened(consortium, tmp_path, "cleo", ("bern", "ada"))
    with pytest.raises(AuthenticationError):
        opened(consortium, tmp_path, "cleo", ("cleo",))


def test_the_model_owner_where_nobody_is_named(tmp_path: Path) -> None:
    consortium = make_consortium()
    assert hand_out(consortium, tmp_path) == {"model.sealed", "model.key.json"}
    assert opened(consortium, tmp_path, "cleo", ("cleo",))
