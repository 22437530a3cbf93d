"""A model's own file asked at home, about a table that was not sealed: no server, no key.

The recipe runs in its sandbox here, too, and must be the one that trained the model. What it
answers is asked of it first, on one row, and holds for all rows: names, kinds and shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, TextIO

from numpy.typing import NDArray

from sealift.data.schedule.memory import SharedBuffer
from sealift.data.schema.schema import Field, Schema
from sealift.errors import MalformedError
from sealift.release.agreement import MAX_DIGITS
from sealift.release.agreement.code import load_assets, load_bundle
from sealift.serve.modelworker import ModelWorker
from sealift.serve.pending import pack_question, unpack_answer
from sealift.train.job.settings import ServingTable
from sealift.train.loop.faults import unfit
from sealift.train.output.modelfacts import ModelFacts
from sealift.train.output.modelform import Fields, ModelForm
from sealift.train.sandbox.confine import Confinement
from sealift.train.worker.executor import RecipeExecutor

ASKED_ROWS: Final = 1024  # at one time
WORK_S: Final = 3600.0
_UNKNOWN: Final = Fields(Schema((Field("answer", "uint8"),)))


def predict_table(
    facts: ModelFacts,
    content: bytes,
    bundle: Path,
    columns: Mapping[str, NDArray[Any]],
    inputs: Schema,
    *,
    text: TextIO,
    tell: Callable[[str], None],
) -> dict[str, NDArray[Any]]:
    """Answers by name, a row for each row; floats rounded to six decimal places.

    Args:
        facts: Of the model's file.
        content: The file.
        bundle: Folder of the recipe that trained it.
        columns: Arrays of shape (rows, ...), by name.
        inputs: What a row of them is.
        text: Where the recipe's prints and traceback go.
        tell: Gets a line about the sandbox.

    Raises:
        IntegrityError: ``code-bundle-differs``.
        UnavailableError: ``no-sandbox``; ``no-device``, ``no-memory``.
        JobError: what is wrong with the recipe; ``answer-refused``.
        MalformedError: ``bad-request``, if arrays do not fit.
    """
    files = load_bundle(bundle, facts.code)
    settings = ServingTable(max_batch_rows=ASKED_ROWS, work_s=WORK_S)
    assets, entry = load_assets(bundle, facts.code.files), facts.code.entry
    with RecipeExecutor(files, entry, text=text, tell=tell, assets=assets) as executor:
        Confinement.parse(executor.sandbox).require(())  # no level lets it run bare

        def start(stack: ExitStack, outputs: Fields) -> ModelWorker:
            form = ModelForm(
                inputs=inputs,
                outputs=outputs,
                max_rows=ASKED_ROWS,
                parameters=facts.parameters or {},
            )
            model = ModelWorker(
                executor,
                form,
                lambda: SharedBuffer.of(content),
                settings=settings,
            )
            stack.enter_context(closing(model))
            model.start()
            return model

        form = ModelForm(inputs=inputs, outputs=_UNKNOWN)
        asked, width = pack_question(columns, form), inputs.row_bytes
        rows = memoryview(asked.payload)
        with ExitStack() as stack:
            fields = start(stack, _UNKNOWN).describe([rows[:width]], 1)
        outputs = _outputs_of(fields)
        answers = bytearray()
        with ExitStack() as stack:
            model = start(stack, outputs)
            for first in range(0, asked.rows, ASKED_ROWS):
                count = min(ASKED_ROWS, asked.rows - first)
                part = rows[first * width : (first + count) * width]
                answers += model.predict([part], count)
    return unpack_answer(answers, outputs.schema)


def _outputs_of(fields: Mapping[str, str]) -> Fields:
    """What a recipe says that it answers, as far as it is a form.

    Raises:
        JobError: ``bad-recipe``.
    """
    try:
        schema = Schema(
            tuple(
                Field(name, form.partition(" ")[0], _sizes(form.partition(" ")[2]))
                for name, form in fields.items()
            )
        )
    except (MalformedError, ValueError):
        raise unfit("answer") from None
    floats = [each.name for each in schema.fields if each.element.kind == "float"]
    return Fields(schema, dict.fromkeys(floats, MAX_DIGITS))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split("x") if each)
