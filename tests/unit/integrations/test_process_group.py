"""Who may be a rank of a script's group, and what the rendezvous store is told.

Ranks are threads here: what `init_process_group` calls, with a store that everybody sees.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Lock, get_ident
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from sealift.attest.development import DevelopmentAttester
from sealift.crypto.identity import create_identity
from sealift.crypto.sign import SigningKey
from sealift.errors import (
    EvidenceError,
    PeerError,
    PolicyError,
    RefusedError,
    SealiftError,
    UsageError,
)
from sealift.events import wall_clock
from sealift.ids import Role
from sealift.integrations import process_group
from sealift.release.agreement.signed import load_verified
from sealift.release.equip import equip
from sealift.train.job.rolesetup import RoleSetup
from tests.sim.jobworld import plain_world
from tests.sim.torchranks import make_group_world, variables

Host = tuple[Any, Any]


class Store:
    """Torch's, of this process; keeps all that was ever put into it."""

    def __init__(self, **lies: str) -> None:
        self._true, self._lies = dist.HashStore(), lies
        self._true.set_timeout(timedelta(seconds=20))
        self.told: list[tuple[str, str]] = []

    def set(self, key: str, value: str) -> None:
        self.told.append((key, value))
        self._true.set(key, value)

    def get(self, key: str) -> bytes:
        return self._lies[key].encode() if key in self._lies else self._true.get(key)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    for name, value in variables().items():
        monkeypatch.setenv(name, value)
    read = process_group.this_host
    read.cache_clear()
    yield read()
    read.cache_clear()


def options(store: Store, rank: int, world: int, timeout_s: float = 20.0) -> Any:
    return SimpleNamespace(
        store=store,
        group_rank=rank,
        group_size=world,
        group_id="0",
        global_ranks_in_group=[],
        timeout=timedelta(seconds=timeout_s),
    )


def total(store: Store, rank: int, world: int, timeout_s: float = 20.0) -> Any:
    """The sum of ranks' numbers, or the error."""
    try:
        group = process_group.open_group(options(store, rank, world, timeout_s))
    except SealiftError as error:
        return error
    mine = torch.full((3,), rank + 1.0)
    group.allreduce([mine]).wait()
    group.shutdown()
    return mine[0].item()


def together(*ranks: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return [each.result() for each in [pool.submit(rank) for rank in ranks]]


def test_the_store_is_told_addresses_alone(host: Host) -> None:
    store = Store()
    assert (
        together(*[lambda r=rank: total(store, r, 3) for rank in range(3)]) == [6.0] * 3
    )
    assert {key for key, _ in store.told} == {
        "relay",
        *(f"direct path {n}" for n in range(3)),
    }
    assert all(re.fullmatch(r"127\.0\.0\.1:\d{1,5}", place) for _, place in store.told)


def test_sixteen_ranks_on_one_machine(host: Host) -> None:
    store = Store()
    ranks = [lambda r=rank: total(store, r, 16, 60.0) for rank in range(16)]
    assert together(*ranks) == [136.0] * 16


def test_seventeen_ranks_are_refused_at_once(host: Host) -> None:
    error = total(Store(), 3, 17)
    assert (type(error), error.code) == (UsageError, "bad-world")


def test_without_a_job_nothing_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    process_group.this_host.cache_clear()
    monkeypatch.delenv("SEALIFT_JOB", raising=False)
    error = total(Store(), 0, 1)
    assert (type(error), error.code) == (UsageError, "variable-missing")


def test_a_code_bundle_that_is_not_the_agreed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    make_group_world(tmp_path)
    (tmp_path / "code/ddp_script.py").write_text("other = 1\n")
    monkeypatch.setenv("SEALIFT_JOB", str(tmp_path / "job.toml"))
    monkeypatch.setenv("SEALIFT_KEY", str(tmp_path / "host.key"))
    process_group.this_host.cache_clear()
    assert total(Store(), 0, 1).code == "code-bundle-differs"


def test_a_job_of_another_plan(monkeypatch: pytest.MonkeyPatch, host: Host) -> None:
    monkeypatch.setenv("SEALIFT_JOB", str(plain_world().job))
    process_group.this_host.cache_clear()
    assert total(Store(), 0, 1).code == "other-plan"


def hosts(monkeypatch: pytest.MonkeyPatch, *found: Host) -> list[Callable[..., Any]]:
    """``total`` for ranks on hosts of their own."""
    here: dict[int, Host] = {}
    monkeypatch.setattr(process_group, "this_host", lambda: here[get_ident()])

    def on(host: Host) -> Callable[..., Any]:
        def rank(*args: Any) -> Any:
            here[get_ident()] = host
            return total(*args)

        return rank

    return [on(each) for each in found]


def impostor(host: Host) -> Host:
    setup, _ = host
    stranger = create_identity("stranger")
    return setup, DevelopmentAttester(
        stranger,
        role=Role.ACCELERATOR,
        code_bundle=setup.agreement.agreement.code.digest,
    )


@pytest.mark.parametrize("genuine", [True, False])
def test_a_changed_address_leads_to_nobody_without_evidence(
    genuine: bool, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who listens there is let in if its evidence is accepted: the control."""
    there = Store()
    first, second = hosts(monkeypatch, host if genuine else impostor(host), host)
    with ThreadPoolExecutor() as pool:
        leading = pool.submit(first, there, 0, 2, 5.0)
        lies = {key: there.get(key).decode() for key in ("relay", "direct path 0")}
        misled = second(Store(**lies), 1, 2, 5.0)
        found = leading.result()
    if genuine:
        assert (found, misled) == (3.0, 3.0)
    else:
        assert isinstance(misled, EvidenceError | PolicyError), misled
        assert isinstance(found, SealiftError)


def another_agreement(setup: RoleSetup, folder: Path) -> RoleSetup:
    make_group_world(folder, name="other")
    agreement = load_verified(folder / "agreement.json")
    return replace(setup, agreement=equip(agreement, clock=wall_clock))


def other_settings(setup: RoleSetup, folder: Path) -> RoleSetup:
    training = setup.job.training
    training = replace(training, seed=training.seed + 1)
    return replace(setup, job=setup.job.model_copy(update={"training": training}))


@pytest.mark.parametrize("change", [another_agreement, other_settings])
def test_a_rank_that_works_for_something_else(
    change: Callable[[RoleSetup, Path], RoleSetup],
    tmp_path: Path,
    host: Host,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    first, second = hosts(monkeypatch, host, (change(host[0], tmp_path), host[1]))
    found = together(lambda: first(store, 0, 2, 5.0), lambda: second(store, 1, 2, 5.0))
    assert all(isinstance(error, SealiftError) for error in found)


def test_ranks_with_other_versions_are_told_which(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, there = Store(), replace_version(monkeypatch, "2.0")
    found = together(*[lambda r=rank: there(store, r, 2, 5.0) for rank in range(2)])
    assert {(type(error), error.code) for error in found} == {
        (PolicyError, "mixed-versions")
    }
    assert all("peft" in error.why and "2.0" in error.why for error in found)


def replace_version(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> Callable[..., Any]:
    """``total``, whose second rank has another version of a framework loaded."""
    ranks, one_at_a_time = dict[int, int](), Lock()
    read = process_group._versions

    def versions() -> dict[str, str]:
        module = SimpleNamespace(__version__=version if ranks[get_ident()] else "1.0")
        with one_at_a_time, pytest.MonkeyPatch.context() as loaded:
            loaded.setitem(sys.modules, "peft", module)  # type: ignore[arg-type]
            return read()

    def rank(store: Store, number: int, *args: Any) -> Any:
        ranks[get_ident()] = number
        return total(store, number, *args)

    monkeypatch.setattr(process_group, "_versions", versions)
    return rank


def test_ranks_that_count_differently(host: Host) -> None:
    store = Store()
    found = together(lambda: total(store, 0, 2, 3.0), lambda: total(store, 1, 3, 3.0))
    assert all(isinstance(error, PeerError) for error in found)


def test_two_processes_are_not_one_rank(host: Host) -> None:
    store = Store()
    numbers = (0, 1, 1)
    found = together(*[lambda r=rank: total(store, r, 3, 3.0) for rank in numbers])
    assert all(isinstance(error, SealiftError) for error in found)


def test_one_instance_key_on_two_ranks(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin, attested = SigningKey.generate(), RoleSetup.attested
    monkeypatch.setattr(
        RoleSetup,
        "attested",
        lambda *args: replace(attested(*args), instance=twin),
    )
    store = Store()
    found = together(lambda: total(store, 0, 2, 5.0), lambda: total(store, 1, 2, 5.0))
    assert all(isinstance(error, SealiftError) for error in found)
    assert any(isinstance(error, RefusedError) for error in found)
