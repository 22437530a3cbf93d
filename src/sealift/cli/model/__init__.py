"""`sealift model`: seal a model that is to be served."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealift import codec
from sealift.cli.console import say, show, unlock
from sealift.cli.judging import add_judging_arguments, load_equipped
from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.data.ownersvault import OwnersVault
from sealift.errors import UsageError
from sealift.release.files import make_folder, read_whole

if TYPE_CHECKING:
    from sealift.data.schema.card import ResourceCard
    from sealift.train.output.modelform import ModelForm

MAX_MODEL_BYTES = 1 << 40


def add_parser(subparsers: Any) -> None:
    """Add the noun `model`."""
    verbs = subparsers.add_parser("model").add_verbs()
    parser = verbs.add_parser(
        "seal",
        run=run,
        help="seal a safetensors file or the model of a run, with a form",
        description="Writes NAME.sealed and its public card NAME.resource.json, and puts the "
        "key into the vault. A run's model is opened as by `sealift output open`, but never "
        "written to disk unencrypted. The form describes inputs, outputs and clients "
        "(docs/howto/serve-a-model.md).",
    )
    parser.add_path("source", help="a .safetensors file, or the folder of a run")
    parser.add_file("--agreement", help="the run's signed agreement")
    parser.add_path("--form", required=True, metavar="TOML", help="the model's form")
    parser.add_argument("--name", required=True, help="its name in the agreement")
    parser.add_path("--vault", required=True, help="created if it does not exist")
    parser.add_path("--key", required=True, help="the owner's identity")
    parser.add_path("-o", "--out", default=Path(), metavar="DIR", help="default: .")
    parser.add_json()
    add_judging_arguments(parser)
    parser.add_passphrase()


def run(args: argparse.Namespace) -> int:
    """Seal; the exit code."""
    from sealift.serve.sealedmodel import seal_model_file
    from sealift.train.output.modelform import load_form

    form = load_form(args.form)
    owner = unlock(args, args.key)
    vault = OwnersVault(args.vault, owner)
    if finished := _finished(args, vault, form):
        _show(args, finished)
        return 0
    vault.demand_free((args.name,), args.out)
    content = _content(args, owner)
    key = SecretKey.generate()
    make_folder(args.out)
    card = seal_model_file(
        content,
        form,
        name=args.name,
        owner=owner.name,
        key=key,
        out_dir=args.out,
        keep=lambda card: vault.keep({card.name: key}),
        kept=vault.kept,
    )
    key.wipe()
    _show(args, card)
    return 0


def _finished(
    args: argparse.Namespace, vault: OwnersVault, form: ModelForm
) -> ResourceCard | None:
    """What an earlier run had sealed when it was stopped, if it is what is asked for."""
    from sealift.data.schema.card import read_card
    from sealift.data.staging import finish_interrupted, sealed_paths

    if not finish_interrupted(args.out, args.name, vault.kept):
        return None
    say(
        f"an earlier run, which was stopped, had sealed {args.name}; it is complete now"
    )
    path = sealed_paths(args.out, args.name).card
    card = read_card(path) if path.exists() else None
    if card is None or not vault.kept(card):
        return None
    if (card.resource.part, card.resource.schema) != ("model", form.to_plain()):
        return None
    say(f"{args.source} was not read again")
    return card


def _content(args: argparse.Namespace, owner: Identity) -> bytes:
    """The model's safetensors: of a file, or of a run, checked like its owner would."""
    if not args.source.is_dir():
        return read_whole(args.source, MAX_MODEL_BYTES)
    if args.agreement is None:
        raise UsageError(
            "the folder of a run needs --agreement", fix="Add --agreement FILE"
        )
    from sealift.train.output.opening import open_output

    verified = load_equipped(args)
    return open_output(args.source, owner, verified).content


def _show(args: argparse.Namespace, card: ResourceCard) -> None:
    from sealift.data.staging import sealed_paths

    paths = sealed_paths(args.out, args.name)
    facts: dict[str, Any] = {"sealed": str(paths.sealed), "card": str(paths.card)}
    resource = codec.to_plain(card.resource)
    kept = ("name", "owner", "total_bytes", "content", "key")
    facts |= {name: resource[name] for name in kept}
    show(facts, as_json=args.json, width=12, gap="")
    if not args.json:
        say(f"the key is in {args.vault}; the agreement needs {paths.card.name}")
