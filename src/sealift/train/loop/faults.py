"""What can be wrong with a recipe, in words that carry no value (rule H8).

A fault is found in the process that runs the recipe and told in the parent, which
believes nothing of it but what it can check: a file and line of the bundle, the name of
a built-in type, a reason out of this list.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from sealift.errors import (
    JobError,
    MalformedError,
    SealiftError,
    UnavailableError,
)

Kind = Literal[
    "error",
    "unfit",
    "not-finite",
    "gradient",
    "rows",
    "bundle",
    "memory",
    "import",
    "device",
    "lost",
]
REASONS: Final[Mapping[str, tuple[str, str]]] = {
    "no-build": ("it defines no build()", ""),
    "no-loss": ("it defines no loss()", ""),
    "no-configure_optimizers": ("it defines no configure_optimizers()", ""),
    "no-prepare": ("it defines no prepare()", "Leave prepare out of the job"),
    "no-module": ("build() returns no nn.Module", ""),
    "no-optimizer": (
        "configure_optimizers() returns no optimizer",
        "Return one torch.optim.Optimizer; schedulers and several optimizers "
        "are not supported yet",
    ),
    "loss": ("the loss is not a scalar tensor", ""),
    "sums": ("prepare() returns something else than numbers and tensors by name", ""),
    "other-sums": (
        "prepare() returns other names or shapes than in the visit before, or sums "
        "beyond their range",
        "Whole numbers add up to 2^53 - 1 at most, all others are finite",
    ),
    "many-sums": ("prepare() returns too many numbers", "65,536 are the most"),
    "model-state": ("its model keeps something else than tensors in its state", ""),
    "optimizer-state": (
        "its optimizer keeps something else than tensors, numbers and text",
        "",
    ),
    "restore": (
        "build() makes another model or optimizer than the one whose state is restored",
        "Every slice builds anew and loads the state: build() must not vary",
    ),
    "model-differs": (
        "build() makes another model than the one that is to be served",
        "Serve a model with the code that it was trained with",
    ),
    "no-statistics": (
        "build() fails without the sums of prepare(), and a served model has none",
        "Keep what they are for in buffers of the model, and have build({}) do without",
    ),
    "no-generate": ("it defines no generate()", ""),
    "no-stream": ("generate() returns nothing that can be iterated", ""),
    "answer": (
        "its answer has not the fields, rows, shapes or kinds of numbers of the "
        "model's form",
        "predict() and generate() return tensors by name, one row for each asked",
    ),
    "gradients": (
        "its gradients cannot be added up in every step",
        "Train dense float32 or float64 parameters of the model, all on the job's device, the "
        "same ones throughout, with one backward pass that is not the recipe's to start; or "
        'choose `slices.sync = "round"`',
    ),
    "compiler": (
        "torch.compile asks for a compiler, and a recipe starts no program",
        'Compile with backend="aot_eager", or on a GPU "cudagraphs"; or not at all',
    ),
    "state-bytes": ("model and optimizer are larger than the room for them", ""),
}
MOST_ROOM: Final = 1 << 50  # bytes, of a GPU
RULES: Final = (
    "not true or false",
    "not finite",
    "below its minimum",
    "above its maximum",
    "next to a gap that is not zero",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    Attributes:
        kind: Which of the others mean something.
        path: File of the bundle, or empty.
        line: Line of that file.
        type: Name of a built-in exception.
        reason: Key of ``REASONS``, or one of ``RULES``.
        step: Optimizer step.
        field: Field of a schema, or name of a parameter.
        room: Bytes of a GPU's memory, and of them in use before a batch; 0 if unknown.
    """

    kind: Kind
    path: str = ""
    line: int = 0
    type: str = "Exception"
    reason: str = ""
    step: int = 0
    field: str = ""
    room: tuple[int, int] = (0, 0)


class RecipeError(JobError):
    """A recipe failed; ``fault`` says how."""

    def __init__(
        self, fault: Fault, what: str, *, why: str = "", fix: str = "", code: str
    ):
        super().__init__(what, why=why, fix=fix, code=code)
        self.fault = fault


def unfit(reason: str) -> RecipeError:
    """The error for a recipe that does not fit."""
    why, fix = REASONS[reason]
    fault = Fault(kind="unfit", reason=reason)
    return RecipeError(
        fault, "the recipe does not fit", why=why, fix=fix, code="bad-recipe"
    )


def recipe_failed(path: str, line: int, type_: str) -> RecipeError:
    """The error for an exception of a recipe."""
    place = f"{path}:{line}" if path else "its edge"
    return RecipeError(
        Fault(kind="error", path=path, line=line, type=type_),
        f"the recipe failed at {place} with {type_}",
        fix="`sealift try` runs it on synthetic rows and shows the whole traceback",
        code="recipe-error",
    )


def foreign_import(path: str, line: int) -> RecipeError:
    """The error for a module that is neither in the bundle nor installed."""
    return RecipeError(
        Fault(kind="import", path=path, line=line, type="ImportError"),
        f"the recipe imports a foreign module{f' at {path}:{line}' if path else ''}",
        why="it is neither in the code bundle nor installed on the accelerator",
        code="foreign-import",
    )


def foreign_device(path: str, line: int) -> RecipeError:
    """The error for a GPU that a recipe asks for by itself, and does not have."""
    return RecipeError(
        Fault(kind="device", path=path, line=line, type="RuntimeError"),
        f"the recipe asks for a GPU{f' at {path}:{line}' if path else ''}",
        why="it computes on the CPU, or on one that it was not given",
        code="foreign-device",
    )


def not_finite(step: int) -> RecipeError:
    """The error for a loss that is NaN or infinite."""
    return RecipeError(
        Fault(kind="not-finite", step=step),
        f"the loss is not finite at step {step}",
        code="not-finite",
    )


def gradient_not_finite(parameter: str, step: int) -> RecipeError:
    """The error for gradients of all slices whose sum is NaN or infinite."""
    return RecipeError(
        Fault(kind="gradient", field=parameter, step=step),
        f"the gradient of {parameter} is not finite at step {step}",
        code="not-finite",
    )


def no_memory(room: tuple[int, int] = (0, 0)) -> UnavailableError:
    """The error where memory ran out; ``room`` as in ``Fault``."""
    total, resting = (each / 2**30 for each in room)
    said = (
        f"the GPU has {total:.1f} GiB, and model, optimizer and two batches take "
        f"{resting:.1f}: what a batch makes on its way has to fit in the rest"
    )
    return UnavailableError(
        "the recipe ran out of memory",
        why=said if total else "",
        fix="Free memory and resume; or, in a job of another name, lower batch_rows "
        "or buffer_bytes",
        code="no-memory",
    )


def _device_lost() -> UnavailableError:
    """The error for a GPU that failed in the midst of the work."""
    return UnavailableError("the GPU failed while it computed", code="device-lost")


def machine_failed(error: BaseException) -> UnavailableError | None:
    """The error if an exception is no fault of a recipe's; None if it may be.

    Memory ran out: Python's own, a device's, or the CPU allocator's, which has no type. Or
    a GPU failed, and not what was computed there, an assertion of a kernel.
    """
    kinds = {kind.__name__ for kind in type(error).__mro__}
    told = type(error) is RuntimeError and "can't allocate memory" in str(error)
    if told or kinds & {"MemoryError", "OutOfMemoryError"}:
        return no_memory()
    if "AcceleratorError" in kinds and "device-side assert" not in str(error):
        return _device_lost()
    return None


def bad_row(field: str, rule: str) -> MalformedError:
    """The error for a party's rows that do not fit their schema."""
    return MalformedError(
        "a party's rows do not fit their schema",
        field=field,
        why=f"a value is {rule}",
        fix="Its owner finds the row with `sealift data seal` on the source",
        code="bad-row",
    )


def describe(error: SealiftError) -> Fault:
    """The fault that an error stands for, in the recipe's process."""
    if isinstance(error, RecipeError):
        return error.fault
    if isinstance(error, UnavailableError):
        return Fault(kind="lost" if error.code == "device-lost" else "memory")
    if isinstance(error, MalformedError) and error.code == "bad-row":
        return Fault(
            kind="rows", field=error.field, reason=error.why[len("a value is ") :]
        )
    if isinstance(error, MalformedError):
        return Fault(kind="bundle")
    return Fault(kind="error")


def explain(fault: Fault) -> SealiftError:
    """The error that a fault, checked by ``believable``, stands for."""
    match fault.kind:
        case "unfit":
            return unfit(fault.reason)
        case "not-finite":
            return not_finite(fault.step)
        case "gradient":
            return gradient_not_finite(fault.field, fault.step)
        case "rows":
            return bad_row(fault.field, fault.reason)
        case "memory" | "lost":
            lost = fault.kind == "lost"
            return _device_lost() if lost else no_memory(fault.room)
        case "import" | "device":
            foreign = foreign_import if fault.kind == "import" else foreign_device
            return foreign(fault.path, fault.line)
        case "bundle":
            return MalformedError(
                "a file of the code bundle hides a module of Python or of a package",
                code="bundle-hides-module",
            )
        case "error":
            return recipe_failed(fault.path, fault.line, fault.type)


def believable(
    fault: Fault,
    files: Mapping[str, bytes],
    *,
    fields: frozenset[str],
    parameters: frozenset[str],
    steps: range,
) -> Fault:
    """What of a fault can be so; the rest becomes a plain error without a place.

    Args:
        fault: From a process that a recipe may have taken over.
        files: The bundle.
        fields: Names of the schemas' fields.
        parameters: Names of the models' tensors.
        steps: Optimizer steps of the task.
    """
    match fault.kind:
        case "unfit":
            fits = fault.reason in REASONS
        case "not-finite":
            fits = fault.step in steps
        case "gradient":
            fits = fault.step in steps and fault.field in parameters
        case "rows":
            fits = fault.field in fields and fault.reason in RULES
        case "error" | "import" | "device":
            return _believable_error(fault, files)
        case "memory":
            fits = 0 <= fault.room[1] <= fault.room[0] < MOST_ROOM
        case _:
            fits = True
    return fault if fits else Fault(kind="error")


def _believable_error(fault: Fault, files: Mapping[str, bytes]) -> Fault:
    lines = files.get(fault.path, b"").count(b"\n") + 1
    if fault.path not in files or not 1 <= fault.line <= lines:
        fault = replace(fault, path="", line=0)
    found = getattr(builtins, fault.type, None)
    known = isinstance(found, type) and issubclass(found, BaseException)
    return fault if known else replace(fault, type="Exception")
