"""A served model end to end: real processes, sockets, keys released by a real broker."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import sealift
from sealift.codec import decode
from sealift.errors import JobError, MalformedError, PeerError, PolicyError
from sealift.release.audit import LogEntry
from sealift.release.auditlog import AuditLog
from sealift.train.serving.client import Client
from tests.sim.jobworld import identities, plain_world
from tests.sim.servingworld import ServingWorld

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


def start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sealift", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Served:
    """Server and broker as processes."""

    def __init__(self, world: ServingWorld) -> None:
        self.world = world
        cloud, lab = plain_world().home("cloud"), plain_world().home("lab")
        self.server = start(
            "serve",
            world.job,
            "--key",
            cloud.key,
            "--passphrase-file",
            cloud.passphrase,
        )
        assert self.server.stderr is not None
        self.lines: list[str] = []
        self.address = self.wait_for(r"serve.listening address=(\S+)")
        job = world.path / "broker.toml"
        job.write_text(world.job.read_text().replace("127.0.0.1:0", self.address))
        self.broker = start(
            "broker", job, "--key", lab.key, "--passphrase-file", lab.passphrase,
            "--vault", world.vault, "--log", world.path / "lab.log",
        )  # fmt: skip
        self.wait_for(r"(serve.ready)")
        self.draining = threading.Thread(target=self._drain, daemon=True)
        self.draining.start()

    def wait_for(self, pattern: str) -> str:
        assert self.server.stderr is not None
        for line in self.server.stderr:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError("".join(self.lines))

    def _drain(self) -> None:
        assert self.server.stderr is not None
        self.lines += list(self.server.stderr)

    def connect(self) -> Client:
        return sealift.connect(
            self.address,
            agreement=self.world.agreement,
            owner=self.world.owner_card,
            development=True,
        )

    def stop(self) -> None:
        for each in (self.server, self.broker):
            if each.poll() is None:
                each.terminate()
            each.communicate(timeout=15)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    world = ServingWorld(tmp_path_factory.mktemp("serving") / "world").make()
    found = Served(world)
    yield found
    found.stop()


def make_layer() -> torch.nn.Linear:
    torch.manual_seed(5)
    return torch.nn.Linear(4, 3)


LAYER = make_layer()


def expected(x: np.ndarray) -> np.ndarray:
    return LAYER(torch.from_numpy(x)).detach().numpy()


def test_the_whole_way(served: Served) -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    with served.connect() as model:
        assert model.seen.level == "development"
        assert model.seen.model == "twice"
        assert model.seen.log_size >= 2
        answer = model.predict({"x": x})
        assert set(answer) == {"y", "best"}  # what the form does not name stays inside
        assert np.array_equal(answer["y"], np.round(expected(x), 3))
        assert np.array_equal(answer["best"], expected(x).argmax(axis=1))
        many = np.tile(x, (7, 1))  # more rows than are taken at once
        assert np.array_equal(
            model.predict(many, pad=True)["y"], np.round(expected(many), 3)
        )
        tensors = model.predict(torch.from_numpy(x))
        assert isinstance(tensors["y"], torch.Tensor)
        steps = list(model.generate({"x": x}, steps=3))
        assert [s["token"].tolist() for s in steps] == [
            np.round(x.sum(axis=1) * 0.5**k, 4).tolist() for k in (1, 2, 3)
        ]


def test_a_failing_row_fails_alone_and_says_nothing(served: Served) -> None:
    bad = np.full((1, 4), 99, dtype=np.float32)
    with served.connect() as model:
        with pytest.raises(JobError) as caught:
            model.predict(bad)
        assert caught.value.code == "model-failed"
        assert "secret" not in str(caught.value)
        with pytest.raises(MalformedError, match="not finite"):
            model.predict(np.full((1, 4), np.nan, dtype=np.float32))
        assert model.predict(np.ones((1, 4), np.float32))["y"].shape == (1, 3)
    assert not any("secret" in line for line in served.lines)


def test_several_clients_get_their_own_answers(served: Served) -> None:
    wrong: list[object] = []

    def ask(seed: int) -> None:
        rng = np.random.default_rng(seed)
        with served.connect() as model:
            for _ in range(10):
                x = rng.normal(size=(rng.integers(1, 5), 4)).astype(np.float32)
                y = model.predict(x, patience_s=20)["y"]
                if not np.allclose(y, expected(x), atol=2e-3):
                    wrong.append(x)

    threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_by_the_command_line(served: Served, tmp_path: Path) -> None:
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps({"x": [[1, 2, 3, 4]]}))
    common = [
        "predict", served.address, rows, "--agreement", served.world.agreement,
        "--owner", served.world.owner_card,
    ]  # fmt: skip
    refused = start(*common)
    _, errors = refused.communicate(timeout=60)
    assert refused.returncode == PolicyError.exit_code
    assert errors.rstrip().endswith("[development-refused]")
    asked = start(*common, "--development", "-o", tmp_path / "answer.csv")
    _, errors = asked.communicate(timeout=60)
    assert asked.returncode == 0, errors
    assert "development" in errors
    head, _row = (tmp_path / "answer.csv").read_text().splitlines()
    assert head == "y_0,y_1,y_2,best"
    streamed = start(*common, "--development", "--stream", "--steps", "2")
    output, _ = streamed.communicate(timeout=60)
    assert [json.loads(line) for line in output.splitlines()] == [
        {"token": [5.0]},
        {"token": [2.5]},
    ]


def test_it_ends_in_order(served: Served) -> None:
    with served.connect() as model:
        stream = model.generate(np.ones((1, 4), np.float32))
        next(stream)
        served.server.send_signal(signal.SIGTERM)
        assert served.server.wait(10) == 128 + signal.SIGTERM
        with pytest.raises(PeerError) as caught:
            list(stream)
        assert caught.value.code in ("server-stopping", "session-closed")
    assert served.server.stdout is not None
    numbers = json.loads(served.server.stdout.read())
    assert numbers["answered"] > 40
    assert numbers["waiting"] == 0
    served.stop()
    kinds = [decode(LogEntry, raw).kind for raw in log_of(served.world)]
    assert kinds == ["agreement", "release"]


def log_of(world: ServingWorld) -> list[bytes]:
    log = AuditLog.open(world.path / "lab.log", identities()["lab"], lambda: 0.0)
    try:
        return list(log.entries())
    finally:
        log.close()
