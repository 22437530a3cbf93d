"""A served model end to end, as its how-to says: processes, sockets, a real broker."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
import torch

import sealift
from sealift.cli.main import main
from sealift.codec import decode
from sealift.crypto.identity import load_identity
from sealift.errors import JobError, MalformedError, PeerError, PolicyError
from sealift.release.log.auditlog import AuditLog
from sealift.release.log.entries import LogEntry
from tests.sim.servinghowto import PASSPHRASE, SLOW, ServingHowTo, boxes, make_layer
from tests.sim.servingprocesses import Served

# Its tests ask one server; the last one counts what all of them asked.
pytestmark = [pytest.mark.distributed, pytest.mark.plan]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(ServingHowTo(tmp_path_factory.mktemp("serving")))
    yield found
    found.stop()


def some(rows: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.uniform(0, 16, size=(rows, 64)).astype(np.float32)


LAYER = make_layer()


def expected(pixels: np.ndarray) -> np.ndarray:
    return torch.softmax(LAYER(torch.from_numpy(pixels)), dim=1).detach().numpy()


def test_the_whole_way(served: Served) -> None:
    pixels = some(3)
    with served.connect() as model:
        assert model.seen.level == "development"
        assert model.seen.model == "digits"
        assert model.seen.log_size >= 2
        answer = model.predict({"pixels": pixels})
        assert set(answer) == {"digit", "probability"}  # what is not named stays inside
        assert np.allclose(answer["probability"], expected(pixels), atol=6e-4)
        assert np.array_equal(answer["digit"], expected(pixels).argmax(axis=1))
        many = np.tile(pixels, (50, 1))  # more rows than are taken at once
        found = model.predict(many, pad=True)["probability"]
        assert np.allclose(found, expected(many), atol=6e-4)
        tensors = model.predict(torch.from_numpy(pixels))
        assert isinstance(tensors["probability"], torch.Tensor)


def test_a_failing_row_fails_alone_and_says_nothing(served: Served) -> None:
    bad = np.full((1, 64), 13, dtype=np.float32)
    with served.connect() as model:
        with pytest.raises(JobError) as caught:
            model.predict(bad)
        assert caught.value.code == "model-failed"
        assert "secret" not in str(caught.value)
        with pytest.raises(MalformedError, match="not finite"):
            model.predict(np.full((1, 64), np.nan, dtype=np.float32))
        assert model.predict(some(1))["digit"].shape == (1,)
    assert not any("secret" in line for line in served.lines)


def test_several_clients_get_their_own_answers(served: Served) -> None:
    wrong: list[object] = []

    def ask(seed: int) -> None:
        with served.connect() as model:
            for number in range(10):
                pixels = some(1 + number % 4, 100 * seed + number)
                found = model.predict(pixels, patience_s=20)["probability"]
                if not np.allclose(found, expected(pixels), atol=6e-4):
                    wrong.append(pixels)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_by_the_command_line(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(served.howto.path)
    np.savez("rows.npz", pixels=(pixels := some(2)))
    asked, streamed, described = served.howto.commands("predict")
    refused = [
        word for word in asked if word not in ("--development", "-o", "answer.csv")
    ]
    assert main(refused) == PolicyError.exit_code
    assert capsys.readouterr().err.rstrip().endswith("[development-refused]")
    assert main(asked) == 0
    assert "whoever runs the server can read" in capsys.readouterr().err
    head, *rows = Path("answer.csv").read_text().splitlines()
    assert head.startswith("digit,probability_0,probability_1")
    assert all(len(number) <= 5 for row in rows for number in row.split(","))
    assert main(streamed) == 0
    total = pixels.sum(axis=1, dtype=np.float64).astype(int)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 3
    assert np.abs(np.array(lines[2]["next"]) - total).max() <= 3
    assert main(described) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["agreement"].startswith("sha256:")
    assert told["form"]["outputs"]["fields"][0]["name"] == "digit"


def test_by_python(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(served.howto.path)
    names = {"pixels": some(2)}
    for box, lines in zip(boxes("python"), (4, 1), strict=True):
        exec(compile(served.howto.adapted(box), "howto", "exec"), names)
        assert len(capsys.readouterr().out.splitlines()) == lines


@pytest.mark.parametrize("cancelled", [True, False])
def test_cancelled_generations_give_their_places_back(
    served: Served, cancelled: bool
) -> None:
    """One address has three places; as the control, generations that go on keep them."""
    slow = np.full((1, 64), SLOW, np.float32)

    async def first_step(model: sealift.AsyncClient) -> dict:
        enough_s = 30.0 if cancelled else 2.0
        stream = model.generate(some(1), steps=1, timeout_s=enough_s)
        async with aclosing(stream) as steps:
            return await anext(steps)

    async def read(model: sealift.AsyncClient, began: asyncio.Event) -> None:
        async with aclosing(model.generate(slow)) as steps:
            async for _ in steps:
                began.set()

    async def visit() -> None:
        async with served.async_client() as model, served.async_client() as other:
            began = [asyncio.Event() for _ in range(3)]
            reading = [asyncio.create_task(read(model, each)) for each in began]
            for each in began:
                await each.wait()
            answer = await other.predict(some(1))  # batches have turns of their own
            assert answer["digit"].shape == (1,)
            for task in reading if cancelled else ():
                task.cancel()
            try:
                if cancelled:
                    assert (await first_step(other))["next"].shape == (1,)
                else:
                    with pytest.raises(PeerError, match="within"):
                        await first_step(other)
            finally:
                for task in reading:
                    task.cancel()
                ended = await asyncio.gather(*reading, return_exceptions=True)
            assert {type(each) for each in ended} == {asyncio.CancelledError}

    asyncio.run(visit())


def test_it_ends_in_order(served: Served) -> None:
    with served.connect() as model:
        stream = model.generate(some(1))
        next(stream)
        served.server.send_signal(signal.SIGTERM)
        assert served.server.wait(300) == 128 + signal.SIGTERM
        with pytest.raises(PeerError) as caught:
            list(stream)
        assert caught.value.code in ("server-stopping", "session-closed")
    assert served.server.stdout is not None
    numbers = json.loads(served.server.stdout.read())
    assert numbers["answered"] > 40
    assert numbers["waiting"] == 0
    assert numbers["refused_cancelled"] >= 6
    served.stop()
    kinds = [decode(LogEntry, raw).kind for raw in log_of(served.howto)]
    assert kinds == ["agreement", "release"]


def log_of(howto: ServingHowTo) -> list[bytes]:
    lab = load_identity(howto.path / "lab.key", PASSPHRASE)
    log = AuditLog.open(howto.path / "lab.log", lab, lambda: 0.0)
    try:
        return list(log.entries())
    finally:
        log.close()
