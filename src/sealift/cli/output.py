"""`sealift output`: open what a run left for the model's owner."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sealift.attest.level import protects_nobody
from sealift.cli.passphrase import add_passphrase_argument, read_passphrase
from sealift.crypto.identity import load_identity
from sealift.errors import UsageError
from sealift.release.files import write_whole
from sealift.release.signed import load_verified


def add_parser(subparsers: Any) -> None:
    """Add the noun `output`."""
    noun = subparsers.add_parser("output", help="open the model of a run, as its owner")
    noun.set_defaults(run=run)
    verbs = noun.add_subparsers(dest="verb", required=True, metavar="VERB")
    parser = verbs.add_parser(
        "open",
        help="check where the model comes from, and write it as safetensors",
        description="Checks the manifest's evidence against the agreement, opens the "
        "sealed model with its owner's identity, and compares its weights with the "
        "digest in the manifest. A run of plan local has no sealed model: its "
        "model.safetensors lies open.",
    )
    parser.add_argument("folder", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--key", type=Path, required=True, metavar="FILE", help="the owner's identity"
    )
    parser.add_argument(
        "--agreement", type=Path, required=True, metavar="FILE", help="the signed one"
    )
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="safetensors"
    )
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    add_passphrase_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Open; the exit code."""
    if args.output.exists():
        raise UsageError(
            f"{args.output} exists", fix="Name another file with -o", code="exists"
        )
    verified = load_verified(args.agreement)
    prompt = f"passphrase of {args.key.name}"
    owner = load_identity(
        args.key, read_passphrase(args.passphrase_file, prompt=prompt)
    )
    from sealift.train.handover import open_output  # torch, once all else is right

    opened = open_output(args.folder, owner, verified)
    write_whole(args.output, opened.content)
    manifest = opened.manifest
    facts = {
        "file": str(args.output),
        "weights": opened.weights.to_text(),
        "level": manifest.level,
        "tensors": opened.tensors,
        "parameters": opened.parameters,
        "metrics": manifest.metrics,
    }
    if args.json:
        print(json.dumps(facts))
    else:
        for name, value in facts.items():
            print(f"{name:<10}  {value}")
    if protects_nobody(manifest.level):
        print(
            "sealift: development evidence: nobody was kept out of this run",
            file=sys.stderr,
        )
    return 0
