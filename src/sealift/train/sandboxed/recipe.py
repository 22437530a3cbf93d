"""A recipe: ordinary PyTorch, loaded from the bytes that the agreement measured.

The agreement names the entry file of a code bundle. It defines ``build()``, which
returns either an object shaped like a ``LightningModule`` (``training_step``,
``configure_optimizers``) or a plain ``nn.Module``, for which the file also defines
``loss(model, batch)`` and ``configure_optimizers(model)``. It may define
``evaluate(model, batch)``, which returns sums over a batch (see ``Recipe.evaluate``), and
``prepare(batch)``, which returns sums that ``build(statistics)`` gets. ``build`` gets the
job's ``[parameters]`` by their names. To be served, it may
define ``predict(model, batch)`` and ``generate(model, batch)`` (see ``Recipe.predict``).

Every slice loads the recipe anew in a process of its own; between slices nothing of it
lives on but the state of model and optimizer.

``Containment`` runs its code so that nothing it says leaves by the way (rule H8): what it
raises becomes file, line and type, with no message and no exception object that would keep
its frames, and so rows, alive; what it prints goes nowhere. It is for recipes that mean no
harm; what keeps the others in is ``sandbox``.

What a model answers, as rows of its form.

Nothing else leaves a served model (rule H8): tensors of the stated shapes, and kinds of
numbers are never mixed up.
"""

from __future__ import annotations

import builtins
import inspect
import os
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import partial
from numbers import Real
from types import FrameType, TracebackType
from typing import Any, Final, TypeVar

import torch
from torch import Tensor, nn

from sealift.data.schema.schema import Field, Schema
from sealift.errors import Stopping
from sealift.release.agreement.training import Parameter
from sealift.train.loop.faults import (
    RecipeError,
    cuda_says,
    foreign_device,
    foreign_import,
    machine_failed,
    recipe_failed,
    unfit,
)
from sealift.train.sandboxed.imports import (
    BUNDLE_SCHEME,
    ForeignImportError,
    Guard,
    Notice,
    import_entry,
    unnoticed,
)
from sealift.train.sandboxed.placement import Batch
from sealift.train.sandboxed.schedules import Optimization, read_optimization

T = TypeVar("T")
MAX_LINE: Final = 1_000_000
SUMS: Final = "statistics"
ANY: Final = "**"  # no name: ``build`` takes parameters of any


def pack_answer(found: Any, schema: Schema, rows: int) -> Tensor:
    """Tensors by name as rows: ``uint8`` of shape ``(rows, row_bytes)``.

    Raises:
        JobError: code ``bad-recipe``, if they are not what the form says.
    """
    if isinstance(found, Tensor) and len(schema.fields) == 1:
        found = {schema.fields[0].name: found}
    if not isinstance(found, Mapping):
        raise unfit("answer")
    packed = torch.zeros(rows, schema.row_bytes, dtype=torch.uint8)
    for field, offset in zip(schema.fields, schema.offsets, strict=True):
        column = _column(found.get(field.name), field, rows)
        place = packed[:, offset : offset + field.size_bytes]
        place.view(column.dtype)[:] = column
    return packed


def describe_answer(found: Any, rows: int) -> dict[str, str]:
    """Element type and sizes of what a model answers, by name; ``prediction`` for one tensor.

    Raises:
        JobError: code ``bad-recipe``, if it is not tensors with a row for each row.
    """
    if isinstance(found, Tensor):
        found = {"prediction": found}
    if not isinstance(found, Mapping):
        raise unfit("answer")
    said = {}
    for name, each in found.items():
        if type(each) is not Tensor or each.dim() < 1 or len(each) != rows:
            raise unfit("answer")
        dtype = str(each.dtype).removeprefix("torch.")
        sizes = "x".join(map(str, each.shape[1:]))
        said[str(name)] = f"{dtype} {sizes}"
    return said


def _column(found: Any, field: Field, rows: int) -> Tensor:
    """The field's elements, one row each; kinds of numbers are never mixed up."""
    wanted = getattr(torch, field.dtype)
    # A subclass would bring methods of its own to where nothing contains them.
    if type(found) is not Tensor or tuple(found.shape) != (rows, *field.shape):
        raise unfit("answer")
    if found.is_complex() or found.is_floating_point() != wanted.is_floating_point:
        raise unfit("answer")
    if (found.dtype == torch.bool) != (wanted == torch.bool):
        raise unfit("answer")
    return found.detach().cpu().to(wanted).reshape(rows, -1)


def let_through(call: Callable[..., T], /, *parts: Any) -> T:
    """Call it; errors and prints are the caller's to see."""
    return call(*parts)


class Containment:
    """A guard for real rows.

    Args:
        paths: Files of the bundle: the only places that an error may name.
        text: Whether the output rule lets the recipe's prints out.
    """

    def __init__(self, paths: Collection[str], *, text: bool = False) -> None:
        self._paths = frozenset(paths)
        self._text = text

    def __call__(self, call: Callable[..., T], /, *parts: Any) -> T:
        """Call it.

        Raises:
            JobError: code ``recipe-error``, with file, line and type.
            UnavailableError: see ``machine_failed``.
        """
        try:
            return call(*parts) if self._text else _silently(call, *parts)
        except Stopping:
            raise
        except BaseException as error:  # a recipe's SystemExit is no more ours to show
            if self._text:
                traceback.print_exception(error)
            failed = machine_failed(error) or self._describe(error)
            _let_go(error)
        # Raised out here, so that the recipe's exception is nobody's context.
        raise failed

    def _describe(self, error: BaseException) -> RecipeError:
        path, line = self._place(error)
        if isinstance(error, ForeignImportError):
            return foreign_import(path, line)
        if any(kind.__name__ == "InductorError" for kind in type(error).__mro__):
            return unfit("compiler")
        if cuda_says(error) == "device" or _asked_for_gpu(error):
            return foreign_device(path, line)
        return recipe_failed(path, line, _known_type(error))

    def _place(self, error: BaseException) -> tuple[str, int]:
        """The innermost line of the bundle; a forged file name is none."""
        if isinstance(error, SyntaxError):
            place = self._line(error.filename or "", error.lineno or 0)
            if place[0]:
                return place
        frames = reversed(traceback.extract_tb(error.__traceback__))
        places = (self._line(frame.filename, frame.lineno or 0) for frame in frames)
        return next((place for place in places if place[0]), ("", 0))

    def _line(self, filename: str, line: int) -> tuple[str, int]:
        path = filename.removeprefix(BUNDLE_SCHEME)
        known = filename.startswith(BUNDLE_SCHEME) and path in self._paths
        return (path, line) if known and 0 < line < MAX_LINE else ("", 0)


def _silently(call: Callable[..., T], /, *parts: Any) -> T:
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        redirect_stdout(nowhere),
        redirect_stderr(nowhere),
    ):
        return call(*parts)


def _known_type(error: BaseException) -> str:
    """The nearest built-in type: a recipe may name its own types after a value."""
    for kind in type(error).__mro__:
        if getattr(builtins, kind.__name__, None) is kind:
            return kind.__name__
    return "Exception"


def _asked_for_gpu(error: BaseException) -> bool:
    """Whether torch failed to begin with CUDA, which a recipe leaves to its job."""
    frames = (frame for frame, _line in traceback.walk_tb(error.__traceback__))
    places = {(each.f_globals.get("__name__"), each.f_code.co_name) for each in frames}
    return ("torch.cuda", "_lazy_init") in places


def _let_go(error: BaseException) -> None:
    """Empty the frames behind an exception, and what led to it, of their variables."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        waiting += [each.__context__, each.__cause__]
        _clear(each.__traceback__)
        each.__traceback__ = each.__context__ = each.__cause__ = None
        each.args = ()


def _clear(trace: TracebackType | None) -> None:
    while trace is not None:
        frame: FrameType = trace.tb_frame
        with suppress(RuntimeError):  # still running: our own, which hold no rows
            frame.clear()
        trace = trace.tb_next


class Recipe:
    """The code owner's part of a job.

    Args:
        files: The bundle: relative path -> source bytes, already measured.
        entry: Path of the file that defines ``build``.
        guard: Runs the recipe's code; by default nothing it says leaves.
        notice: Told of each of the bundle's modules before it runs.

    Raises:
        MalformedError: if the entry is not in the bundle.
        JobError: if the bundle does not load.
    """

    def __init__(
        self,
        files: Mapping[str, bytes],
        entry: str,
        *,
        guard: Guard | None = None,
        notice: Notice = unnoticed,
    ) -> None:
        self.guard: Final[Guard] = guard or Containment(files)
        self._module = import_entry(files, entry, self.guard, notice)
        if not self.defines("prepare"):  # sums alone need no model
            self._function("build")

    def defines(self, name: str) -> bool:
        """Whether the entry file has a function of this name."""
        return self.find(name) is not None

    def find(self, name: str) -> Callable[..., Any] | None:
        """The entry file's function of this name, if it has one."""
        found = getattr(self._module, name, None)
        return found if callable(found) else None

    def build(
        self,
        statistics: Mapping[str, Tensor] | None = None,
        parameters: Mapping[str, Parameter] | None = None,
    ) -> nn.Module:
        """A fresh model; draws from torch's generators.

        Args:
            statistics: Sums of ``prepare``, for a ``build`` that takes an argument.
            parameters: Of the job, by name; a whole number comes as an ``int``.

        Raises:
            JobError: ``bad-recipe``: no module, or a parameter that ``build`` has not.
        """
        build = self._function("build")
        named = {name: _exact(each) for name, each in (parameters or {}).items()}
        first, names, needed = self.guard(_arguments, build)
        if not (named.keys() <= names or ANY in names):
            raise unfit("parameters")
        if needed - named.keys():
            raise unfit("no-parameter")
        parts = (dict(statistics or {}),) if first and first not in named else ()
        model = self.guard(partial(build, **named), *parts)
        if not isinstance(model, nn.Module):
            raise unfit("no-module")
        return model

    @property
    def takes_statistics(self) -> bool:
        """Whether ``build`` takes sums of ``prepare``."""
        return bool(self.guard(_arguments, self._function("build"))[0])

    def optimization(self, model: nn.Module) -> Optimization:
        """The optimizer that the recipe configures for ``model``, and its schedulers."""
        if hasattr(model, "configure_optimizers"):
            made = self.guard(model.configure_optimizers)
        else:
            made = self.guard(self._function("configure_optimizers"), model)
        return read_optimization(made)

    def loss(self, model: nn.Module, batch: Batch, step: int) -> Tensor:
        """The scalar training loss of one batch."""
        loss = self.unchecked_loss(model, batch, step)
        # A subclass would bring methods of its own to where nothing contains them.
        if type(loss) is not Tensor or loss.dim() != 0:
            raise unfit("loss")
        return loss

    def unchecked_loss(self, model: nn.Module, batch: Batch, step: Any) -> Any:
        """What the recipe returns as the loss of one batch, whatever it is."""
        if self.guard(hasattr, model, "training_step"):
            return self.guard(lambda: _plain(model.training_step(batch, step)))
        function = self._function("loss")
        return self.guard(lambda: _plain(function(model, batch)))

    def evaluate(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        """Sums over one batch, by metric; the caller divides what has no place by the rows.

        A recipe without ``evaluate`` is measured by its loss.
        """
        evaluate = getattr(self._module, "evaluate", None)
        if evaluate is not None:
            sums: dict[str, float] | None
            sums = self.guard(_evaluate, evaluate, model, batch)
            if sums is None:
                raise unfit("measures")
            return sums
        rows = len(next(iter(batch.values())))
        return {"loss": float(self.loss(model, batch, 0)) * rows}

    def prepare(self, batch: Batch) -> Mapping[str, Any]:
        """Whatever ``prepare`` returns for one batch; the caller checks and adds."""
        found = self.guard(self._function("prepare"), batch)
        if not isinstance(found, Mapping):
            raise unfit("sums")
        return found

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Whatever answers one batch: tensors by name, or one; the caller checks.

        Without ``predict`` the model is called with those of the batch's fields that its
        ``forward`` names, or with the batch, if that has one argument of another name.
        """
        predict = getattr(self._module, "predict", None)
        if predict is not None:
            return self.guard(predict, model, batch)
        return self.guard(_call, model, batch)

    def generate(self, model: nn.Module, batch: Batch) -> Iterator[Any]:
        """Whatever the recipe's generator makes of one batch, step by step."""
        found = self.guard(self._function("generate"), model, batch)
        if not isinstance(found, Iterator):
            raise unfit("no-stream")
        return found

    def _function(self, name: str) -> Callable[..., Any]:
        found = self.find(name)
        if found is None:
            raise unfit(f"no-{name}")
        return found


def _arguments(build: Callable[..., Any]) -> tuple[str, set[str], set[str]]:
    """The argument that takes the sums of ``prepare``, if any; all names; those without default.

    It is the first one without a default, or named ``statistics``; others are parameters.
    """
    first, names, needed = "", set[str](), set[str]()
    for place, (name, each) in enumerate(inspect.signature(build).parameters.items()):
        bare = each.default is each.empty
        if each.kind is each.VAR_KEYWORD:
            names.add(ANY)
        elif each.kind is each.VAR_POSITIONAL:
            continue
        elif (
            not place and each.kind is not each.KEYWORD_ONLY and (bare or name == SUMS)
        ):
            first = name
        elif bare:
            needed.add(name)
        names.add(name)
    return first, names, needed


def _exact(value: Parameter) -> Parameter:
    """The same value in every process: what crosses between them has no 1.0 beside 1."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _call(model: nn.Module, batch: Batch) -> Any:
    names = inspect.signature(model.forward).parameters
    if len(names) == 1 and not names.keys() & batch.keys():
        return model(batch)
    kinds = {each.kind for each in names.values()}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return model(**batch)
    return model(**{name: each for name, each in batch.items() if name in names})


def _plain(loss: Any) -> Any:
    return loss.get("loss") if isinstance(loss, Mapping) else loss


def _evaluate(
    evaluate: Callable[..., Any], model: nn.Module, batch: Batch
) -> dict[str, float] | None:
    sums = evaluate(model, batch)
    if not isinstance(sums, Mapping) or not all(map(_is_number, sums.values())):
        return None
    return sums_by_place(sums)


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_complex() or value.is_meta)
    return isinstance(value, Real)


def sums_by_place(sums: Mapping[str, Any]) -> dict[str, float]:
    """Numbers by name; of a tensor with dimensions by name and place, zeros left out."""
    found: dict[str, float] = {}
    for name, value in sums.items():
        if not isinstance(value, Tensor) or not value.dim():
            found[str(name)] = float(value)
            continue
        for place in value.detach().cpu().nonzero().tolist():
            key = f"{name}[{','.join(map(str, place))}]"
            found[key] = float(value[tuple(place)])
    return found
