"""deploy/compose and deploy/kubernetes: by the published schemas, and by the product's own parser."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sealift.cli.main import build_parser, joined
from sealift.health.server import answer
from sealift.health.status import Count, Status

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".venv/deploy/bin"
COMPOSE = sorted((ROOT / "deploy/compose").glob("*.yaml"))
KUBERNETES = sorted((ROOT / "deploy/kubernetes").glob("*.yaml"))
STATUS = Status(
    role="broker",
    at_s=0.0,
    counts=(Count("release.refused", "no-lease", 1), Count("visit.ended", "", 7)),
    gauges={"leases_open": 1},
)
pytestmark = pytest.mark.skipif(
    not TOOLS.exists(), reason="the validators are not installed (make setup)"
)


def tool(name: str, *words: str | Path, said: str = "") -> str:
    ran = subprocess.run(
        [TOOLS / name, *words], input=said, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def documents(path: Path) -> list[dict[str, Any]]:
    program = (
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))"
    )
    found: list[dict[str, Any]] = json.loads(
        tool("python", "-c", program, said=path.read_text("utf-8"))
    )
    return found


def containers() -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    for path in COMPOSE:
        (document,) = documents(path)
        for name, each in document["services"].items():
            yield f"{path.stem} {name}", each, each["command"]
    for path in KUBERNETES:
        for document in documents(path):
            if document["kind"] == "StatefulSet":
                for each in document["spec"]["template"]["spec"]["containers"]:
                    yield f"{path.stem} {each['name']}", each, each["args"]


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.stem)
def test_compose_files_are_valid(path: Path) -> None:
    tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", path)


@pytest.mark.parametrize("path", KUBERNETES, ids=lambda path: path.stem)
def test_kubernetes_files_are_valid(path: Path) -> None:
    tool("kubernetes-validate", "--strict", path)


def test_every_command_is_one_of_the_product() -> None:
    seen = 0
    for _name, _each, words in containers():
        if words[0] == "join":  # the invitation is there once it runs
            words = ["join", "INVITATION", *words[2:]]
        args = build_parser(joined(words)).parse_args(joined(words))
        assert args.noun in ("host", "join INVITATION", "health")
        seen += 1
    assert seen == 8


def test_no_container_may_do_more_than_it_has_to() -> None:
    for name, each, _words in containers():
        own = each.get("securityContext")
        if own is None:
            assert each["read_only"], name
            assert each["cap_drop"] == ["ALL"], name
            assert "no-new-privileges:true" in each["security_opt"], name
            assert each["user"] == "65532:65532", name
            assert "mem_limit" in each, name
            assert not each.get("privileged"), name
        else:
            assert own["readOnlyRootFilesystem"], name
            assert not own["allowPrivilegeEscalation"], name
            assert own["capabilities"] == {"drop": ["ALL"]}, name
            assert "limits" in each["resources"], name
        assert "environment" not in each, name  # secrets are files
        assert "env" not in each, name


def test_metrics_are_read_by_those_who_scrape_them() -> None:
    program = """
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read
for each in read(sys.stdin.read()):
    for sample in each.samples:
        print(each.type, sample.name, dict(sample.labels), sample.value)
"""
    shown = answer("GET", "/metrics", lambda: STATUS, 0.0)
    assert tool("python", "-c", program, said=shown.body).splitlines() == [
        "counter sealift_refusals_total {'rule': 'no-lease'} 1",
        "counter sealift_events_total {'kind': 'visit.ended'} 7",
        "info sealift_role_info {'role': 'broker'} 1",
        "gauge sealift_ready {} 1",
        "gauge sealift_leases_open {} 1",
    ]
