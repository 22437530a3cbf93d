"""`sealift data`: draft a schema, seal a table at home, look at a sealed file.

Everything here runs on the owner's machine; error messages may show the owner's values.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealift import codec
from sealift.channel.record.outputfile import open_output
from sealift.cli.console import say, unlock
from sealift.crypto.identity import Identity
from sealift.crypto.keys import SecretKey
from sealift.data.ownersvault import OwnersVault
from sealift.errors import MalformedError, UsageError
from sealift.events import Event, Sink, discard
from sealift.ids import check_name
from sealift.release.broker.stores import opened_vault
from sealift.release.files import make_folder

if TYPE_CHECKING:
    from sealift.data.schema.card import ResourceCard
    from sealift.data.schema.schema import Schema
    from sealift.data.sources.source import SourceOptions


def add_parser(subparsers: Any) -> None:
    """Add the noun `data`."""
    verbs = subparsers.add_parser("data").add_verbs()
    _add_schema(verbs)
    _add_seal(verbs)
    _add_inspect(verbs)


def _add_schema(verbs: Any) -> None:
    parser = verbs.add_parser(
        "schema",
        run=_draft,
        help="draft a table's schema, and list the cells that do not fit it",
        description="Reads every row. For .csv and .tsv files it detects the delimiter, the "
        "encoding and the type of each column, and lists the cells that differ from the "
        "rest of their column. Read the draft before you seal.",
    )
    parser.add_argument(
        "source",
        nargs="+",
        help="tables with the same columns, such as train and held-out",
    )
    add_source_options(parser)
    parser.add_argument(
        "--vector",
        action="append",
        metavar="NAME=COLUMNS",
        help="make one field of columns of numbers: genes='ENSG*', or genes=A1BG..ZZZ3 for "
        "all from the first to the last (.csv and .tsv files); may be repeated",
    )
    parser.add_path("-o", "--out", metavar="TOML", help="default: standard output")


def _add_seal(verbs: Any) -> None:
    parser = verbs.add_parser(
        "seal",
        run=_seal,
        help="check a table against its schema, and seal it",
        description="Writes NAME.sealed and its public card NAME.resource.json, and puts the "
        "data key into the vault. If a row does not fit the schema, the row is named and "
        "nothing is written. Without --schema the schema comes from the source; it is "
        "printed, and written to NAME.schema.toml.",
    )
    parser.add_argument(
        "source",
        help="a .csv, .tsv, .npy, .npz, .safetensors or .parquet file; a folder with images by "
        "class, with Parquet files, or from Dataset.save_to_disk; or MODULE:DATASET",
    )
    parser.add_path("--schema", metavar="TOML", help="the table's schema")
    add_source_options(parser)
    parser.add_argument("--name", required=True, help="its name in the agreement")
    parser.add_argument("--part", required=True, choices=("train", "heldout"))
    parser.add_argument(
        "--shards",
        type=int,
        metavar="N",
        help="seal N files, NAME-0 to NAME-(N-1), with about as many rows each, in order",
    )
    parser.add_path("--vault", required=True, help="created if it does not exist")
    parser.add_path("--key", required=True, help="the owner's identity")
    parser.add_passphrase()
    parser.add_path("-o", "--out", default=Path(), metavar="DIR", help="default: .")
    parser.add_argument(
        "--record-bytes",
        type=int,
        metavar="N",
        help="default: 1 MiB; for rows of 64 KiB or more the fewest whole rows",
    )
    parser.add_argument(
        "--cell-rows",
        type=int,
        default=64,
        metavar="N",
        help="rows in a cell, the smallest part that a visit can use; it cannot be changed "
        "later, and an agreement's metric_rows cannot be more; default: 64",
    )
    parser.add_json()


def add_source_options(parser: Any) -> None:
    """Add how a source is written, and what of it is read."""
    _add_own_table(parser)
    parser.add_argument(
        "--fields",
        metavar="NAME[=COLUMN],...",
        help="use only these columns, under these names (not for .csv files, whose schema "
        "lists them, nor for images)",
    )
    parser.add_argument(
        "--image-size", metavar="HEIGHTxWIDTH", help="scale images to this size"
    )
    parser.add_argument(
        "--image-mode", choices=("RGB", "L"), help="convert images to this mode"
    )


def _add_own_table(parser: Any) -> None:
    """Add ``--table``."""
    parser.add_path(
        "--table",
        metavar="TOML",
        help="how your own .csv or .tsv file is written: encoding, decimal mark, names of "
        "columns, ...; default: table.toml beside it, if there is one",
    )


def _add_inspect(verbs: Any) -> None:
    parser = verbs.add_parser(
        "inspect",
        run=_inspect,
        help="show a sealed file's header; with its key, verify all of it",
        description="Without a key it shows the public header, which is not authenticated. "
        "With --vault and --key it opens every record, and compares the content with the "
        "commitment in the card.",
    )
    parser.add_path("file", help="a .sealed file")
    parser.add_path("--card", help="default: NAME.resource.json beside the file")
    parser.add_path("--vault", help="the vault with the data key")
    parser.add_path("--key", help="the owner's identity")
    parser.add_passphrase()
    parser.add_json()


def _draft(args: argparse.Namespace) -> None:
    """Write a draft, then list the cells of the tables that do not fit it."""
    from sealift.data.schema.document import schema_to_toml
    from sealift.data.sources.table import check_tables, draft_schema

    options = source_options(args, args.source[0])
    for each in args.source[1:]:
        if source_options(args, each).own != options.own:
            raise UsageError(
                f"{args.source[0]} and {each} have different table.toml files",
                fix="Draft the schema from one of them, or name one file with --table",
            )
    with _progress(
        f"reading {', '.join(Path(each).name for each in args.source)}"
    ) as sink:
        draft = draft_schema(args.source, options, sink)
    text = "".join(f"# {note}\n" for note in draft.notes) + schema_to_toml(draft.schema)
    if args.out is None:
        print(text, end="")
    else:
        with open_output(args.out) as output:
            output.write(text.encode())
        for note in draft.notes:
            say(note)
        print(args.out)
    if draft.fits:
        return
    with _progress("comparing all cells with the draft") as sink:
        try:
            check_tables(args.source, draft.schema, options, sink)
        except MalformedError:
            if args.out is not None:
                say(
                    f"a draft is in {args.out}, but the table does not fit it; "
                    "remove the draft before you type the command again"
                )
            raise


def _seal(args: argparse.Namespace) -> None:
    from sealift.data.schema.document import load_schema
    from sealift.data.sealing import (
        check_cell_rows,
        demand_unsealed,
        record_bytes_for,
        seal_shards,
        shard_names,
    )
    from sealift.data.sources.table import tell_numbers

    count = args.shards
    check_name(args.name, what="resource name")
    record_bytes_for(
        1, about=args.record_bytes
    )  # an invalid size is refused before any work
    check_cell_rows(args.cell_rows)
    names = [args.name] if count is None else shard_names(args.name, count)
    options = source_options(args, args.source)
    given = None if args.schema is None else load_schema(args.schema)
    vault = OwnersVault(args.vault, _identity(args))
    if cards := _finished(args, vault, names, given):
        _show_sealed(args, cards)
        return
    vault.demand_free(names, args.out)
    demand_unsealed(args.out, args.name, names, schema_file=given is None)
    keys = {name: SecretKey.generate() for name in names}
    schema = given or _said_schema(args, options)
    for line in tell_numbers(args.source, schema, options):
        say(line)
    make_folder(args.out)
    with _progress(f"sealing {Path(args.source).name}") as sink:
        cards = seal_shards(
            args.source,
            schema,
            options=options,
            schema_file=given is None,
            name=args.name,
            keys=keys,
            part=args.part,
            owner=vault.identity.name,
            out_dir=args.out,
            record_bytes=args.record_bytes,
            cell_rows=args.cell_rows,
            keep=lambda cards: vault.keep(keys),
            kept=vault.kept,
            sink=sink,
        )
    _show_sealed(args, cards)


def _finished(
    args: argparse.Namespace,
    vault: OwnersVault,
    names: Sequence[str],
    given: Schema | None,
) -> tuple[ResourceCard, ...]:
    """What an earlier run had sealed when it was stopped, if it is what is asked for."""
    from sealift.data.schema.card import read_card
    from sealift.data.staging import finish_interrupted, sealed_paths

    if not finish_interrupted(args.out, args.name, vault.kept):
        return ()
    say(
        f"an earlier run, which was stopped, had sealed {args.name}; it is complete now"
    )
    paths = [sealed_paths(args.out, name).card for name in names]
    one_more = sealed_paths(args.out, f"{args.name}-{len(names)}").card
    fewer = args.shards is not None and one_more.exists()  # than there are
    if fewer or not all(each.exists() for each in paths):
        return ()
    cards = tuple(read_card(each) for each in paths)
    if not all(
        map(vault.kept, cards)
    ):  # anybody who can write there could have left the mark
        return ()
    asked = (args.part, args.cell_rows)
    if any((c.resource.part, c.resource.cell_rows) != asked for c in cards) or (
        given is not None and any(card.schema != given.agreed for card in cards)
    ):
        return ()
    say(f"{args.source} was not read again")
    return cards


def _show_sealed(args: argparse.Namespace, cards: Sequence[ResourceCard]) -> None:
    """What was sealed; where --shards was said, as a list (JSON) or one by one."""
    from sealift.data.staging import sealed_paths

    every = []
    if args.schema is None:
        say(f"the schema was written to {sealed_paths(args.out, args.name).schema}")
    for card in cards:
        paths = sealed_paths(args.out, card.name)
        say(f"the data key is in {args.vault}; the agreement needs {paths.card.name}")
        resource = codec.to_plain(card.resource)
        facts: dict[str, Any] = {"sealed": str(paths.sealed), "card": str(paths.card)}
        facts |= {k: v for k, v in resource.items() if k not in ("schema", "rule")}
        every.append(facts | {"records": len(card.leaves)})
    if args.shards is not None and args.json:
        print(json.dumps({"shards": every}))
        return
    for each in every:
        _show(each, as_json=args.json)


def _said_schema(args: argparse.Namespace, options: SourceOptions) -> Schema:
    """The schema that the source says itself, which is shown: sealing may take long."""
    from sealift.data.schema.document import schema_to_toml
    from sealift.data.sources.table import infer_schema

    schema = infer_schema(args.source, options)
    say(f"no --schema was given; {args.source} has this schema:")
    print(schema_to_toml(schema), file=sys.stderr)
    return schema


def source_options(args: argparse.Namespace, source: str | Path) -> SourceOptions:
    """What the command line says of a source, and the table.toml of a text file.

    Raises:
        UsageError: an option is written wrongly.
        UnavailableError, MalformedError: as ``load_own_table``.
    """
    from sealift.data.schema.owntable import AS_IT_LOOKS, own_table_of
    from sealift.data.sources.source import SourceOptions
    from sealift.data.sources.table import is_text

    fields = []
    for pair in args.fields.split(",") if args.fields else ():
        name, mark, column = pair.strip().partition("=")
        fields.append((name, column if mark else name))
    if len({name for name, _ in fields}) != len(fields):
        raise UsageError("--fields has the same name twice")
    size = None
    if args.image_size:
        parts = re.fullmatch("([1-9][0-9]*)x([1-9][0-9]*)", args.image_size)
        if parts is None:
            raise UsageError(
                f"--image-size {args.image_size} is not HEIGHTxWIDTH, like 32x32"
            )
        size = (int(parts[1]), int(parts[2]))
    vectors = []
    for pair in getattr(args, "vector", None) or ():
        name, mark, pattern = pair.partition("=")
        if not (name and mark and pattern):
            raise UsageError(f"--vector {pair} is not NAME=COLUMNS, like genes='ENSG*'")
        vectors.append((name, pattern))
    own = AS_IT_LOOKS
    if args.table is not None or is_text(str(source)):
        own = own_table_of(source, args.table)
    return SourceOptions(tuple(fields), size, args.image_mode, tuple(vectors), own)


def _inspect(args: argparse.Namespace) -> None:
    from sealift.data.schema.card import CARD_SUFFIX, read_card
    from sealift.data.shards.inspect import inspect_file

    facts: dict[str, Any] = asdict(inspect_file(args.file))
    path = args.card or args.file.with_suffix(CARD_SUFFIX)
    card = read_card(path) if args.card or path.exists() else None
    if card is not None:
        facts |= {"name": card.name, "owner": card.resource.owner}
        facts |= {"part": card.resource.part, "rows": card.resource.rows}
        facts["cell_rows"] = card.resource.cell_rows
    facts["verified"] = _verify(args, card)
    if facts["verified"] == "no":
        say("the header is not authenticated; add --vault and --key to verify the file")
    _show(facts, as_json=args.json)


def _verify(args: argparse.Namespace, card: ResourceCard | None) -> str:
    """What was verified, in words."""
    from sealift.data.shards.inspect import verify_table

    if (args.vault is None) != (args.key is None):
        raise UsageError("--vault and --key must be given together")
    if args.vault is None:
        return "no"
    with opened_vault(args.vault, _identity(args)) as vault:
        name = card.name if card is not None else args.file.name.split(".")[0]
        key = vault.fetch(name)
    verify_table(args.file, key, card)
    return "records" if card is None else "records and content commitment"


def _identity(args: argparse.Namespace) -> Identity:
    return unlock(args, args.key, f"Passphrase of {args.key}")


def _progress(label: str) -> AbstractContextManager[Sink]:
    """A bar on a terminal, nothing elsewhere."""
    return _Bar(label) if sys.stderr.isatty() else nullcontext(discard)


class _Bar(AbstractContextManager[Sink]):
    """How far it is, and the time that is left."""

    def __init__(self, label: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=Console(stderr=True),
            transient=True,
        )
        # How much there is to do is not known before a table was looked at.
        self._task = self._bars.add_task(label, total=None)

    def __enter__(self) -> Sink:
        self._bars.start()
        return self._draw

    def __exit__(self, *exc: object) -> None:
        self._bars.stop()

    def _draw(self, event: Event) -> None:
        done, total = event.fields["done_bytes"], event.fields["total_bytes"]
        if isinstance(done, int) and isinstance(total, int):
            self._bars.update(self._task, completed=done, total=total)


def _show(facts: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(facts))
        return
    width = max(len(key) for key in facts)
    for key, value in facts.items():
        print(f"{key.replace('_', ' '):<{width}}  {value}")
