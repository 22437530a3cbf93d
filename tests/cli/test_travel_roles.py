"""`sealift train` starts again what was killed, a few times, and nothing else."""

from __future__ import annotations

import argparse
from pathlib import Path

from sealift.cli.train.travel import ACCELERATOR, ORCHESTRATOR, TravelRoles
from sealift.train.job.roleprocesses import RoleEvent
from sealift.travel.peers import accelerator_names


class House:
    """Remembers what was started."""

    def __init__(self) -> None:
        self.children: dict[str, list[str]] = {}
        self.started: list[tuple[str, list[str]]] = []
        self.killed = True

    def start(
        self, name: str, module: str, words: list[str | Path], environment: object
    ) -> None:
        self.children[name] = [str(word) for word in words]
        self.started.append((name, self.children[name]))

    def was_killed(self, name: str) -> bool:
        return self.killed


def make_roles(
    house: House, said: list[str], accelerators: tuple[str, ...] = (ACCELERATOR,)
) -> TravelRoles:
    args = argparse.Namespace(
        job=Path("job.toml"), key=[Path("cloud")], passphrase_file=[Path("p")],
        attester_key=Path("host"), attester_passphrase_file=Path("q"), output=None,
        orchestrator="0.0.0.0:0", state=Path("kept"), must_resume=True,
        collateral=None, references=[Path("hosts"), Path("more")], tpm="unix:/t",
        tpm_state=None, tpm_issuers=None, event_log="none", ima_list="none", agent=None,
        sealed=[Path("north")],
    )  # fmt: skip
    return TravelRoles(
        house,
        args,
        accelerators,
        restarts=2,
        say=said.append,  # type: ignore[arg-type]
    )


def listening(port: int) -> RoleEvent:
    fields = {"host": "0.0.0.0", "port": port}
    return RoleEvent(ORCHESTRATOR, 0.0, "orchestrator.listening", fields)


def test_starts_both_and_again_at_the_same_port() -> None:
    house, said = House(), list[str]()
    roles = make_roles(house, said)
    roles.start_orchestrator()
    roles.take_listening(listening(7410))
    first = dict(house.children)
    at = first[ACCELERATOR].index("--state")
    assert first[ACCELERATOR][at : at + 3] == ["--state", "kept", "--must-resume"]
    assert "127.0.0.1:7410" in first[ACCELERATOR]
    assert roles.start_again(ORCHESTRATOR)
    assert "0.0.0.0:7410" in house.children[ORCHESTRATOR]
    roles.take_listening(listening(7410))
    assert len(house.started) == 3  # the accelerator is there still
    assert roles.start_again(ACCELERATOR)
    assert house.children[ACCELERATOR] == first[ACCELERATOR]
    assert said == [
        "the orchestrator was killed; it was started again",
        "the accelerator was killed; it was started again",
    ]


def test_not_too_often_and_not_if_it_ended_by_itself() -> None:
    house, said = House(), list[str]()
    roles = make_roles(house, said)
    roles.start_orchestrator()
    assert [roles.start_again(ORCHESTRATOR) for _ in range(3)] == [True, True, False]
    house.killed = False
    roles = make_roles(house, said)
    assert not roles.start_again(ORCHESTRATOR)


def test_both_roles_judge_by_the_same_files() -> None:
    house = House()
    roles = make_roles(house, [])
    roles.start_orchestrator()
    roles.take_listening(listening(4000))
    sets = ["--references", "hosts", "--references", "more"]
    for name in (ORCHESTRATOR, ACCELERATOR):
        words = house.children[name]
        at = words.index("--references")
        assert words[at : at + 4] == sets
    host = house.children[ACCELERATOR]
    assert host[host.index("--tpm") + 1] == "unix:/t"
    assert "--agent" not in host
    assert "--tpm" not in house.children[ORCHESTRATOR]


def test_every_rank_of_this_host_has_its_number() -> None:
    house, names = House(), accelerator_names(2)
    roles = make_roles(house, [], names)
    roles.start_orchestrator()
    roles.take_listening(listening(4000))
    for number, name in enumerate(names):
        words = house.children[name]
        assert words[words.index("--rank") + 1] == str(number)
        assert words[words.index("--sealed") + 1] == "north"
    assert roles.start_again(names[1])
    assert [name for name, _ in house.started] == [ORCHESTRATOR, *names, names[1]]


def test_no_rank_runs_here_whose_rows_are_at_home() -> None:
    house = House()
    roles = make_roles(house, [], ())
    roles.start_orchestrator()
    roles.take_listening(listening(4000))
    assert list(house.children) == [ORCHESTRATOR]
