"""What is public of a product: shapes, and what follows from shapes alone (rule C2).

A linear layer is a convolution of images of one pixel, so one geometry has both. A call of
a layer is two rounds at most: forward, and backward for both gradients together. Widths
and residues are functions of shapes; what data decide is the secret scale, never these.
Source: spec/shares.md sections 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from sealift.errors import MalformedError, quote_foreign
from sealift.numeric.residues import BASES, ResidueBasis

Direction = Literal["forward", "input", "weight"]  # y; the gradients of x and of w
Tensor = Literal["x", "w", "dy"]
OPERANDS: Final[dict[Direction, tuple[Tensor, Tensor]]] = {
    "forward": ("x", "w"),
    "input": ("dy", "w"),
    "weight": ("dy", "x"),
}

_RESULTS: Final[dict[Direction, Tensor]] = {
    "forward": "dy", "input": "x", "weight": "w",
}  # fmt: skip

FEWEST_BITS: Final = 8
MOST_BITS: Final = 12  # of the first and the last layer, and of gradients
PEAK_TO_RMS_SQUARED: Final = 16  # up to there, no bit of an operand is lost
MAX_SIDE: Final = 1 << 24
MAX_ELEMENTS: Final = 1 << 31
MAX_NAME: Final = 512  # of a module's path: a trace has thousands
_LAYERS: Final = 1 << 14  # whose figures are remembered: a step asks for them often


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The geometry of one call of a layer.

    Tensors are ``x`` (batch, height, width, inputs), ``w`` (outputs, *kernel, inputs) and
    ``y`` (batch, *out, outputs): torch's memory format ``channels_last``.

    Attributes:
        name: Path of the module in its model.
        edge: Whether it is the model's first or last one.
        batch: Images, or rows of a linear layer.
    """

    name: str
    batch: int
    inputs: int
    outputs: int
    height: int = 1
    width: int = 1
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    edge: bool = False

    def __post_init__(self) -> None:
        sizes = (self.batch, self.inputs, self.outputs, self.height, self.width)
        steps = (*self.kernel, *self.stride)
        if len(self.name) > MAX_NAME:
            raise _odd(self.name, f"its name is longer than {MAX_NAME} characters")
        if not all(1 <= each <= MAX_SIDE for each in (*sizes, *steps)):
            raise _odd(self.name, "a size is not a positive number")
        if not all(0 <= p < k for p, k in zip(self.padding, self.kernel, strict=True)):
            raise _odd(self.name, "the padding is not smaller than the kernel")
        if min(self.out) < 1:
            raise _odd(self.name, "the kernel is larger than the image")
        if max(_count(self.shape(t)) for t in ("x", "w", "dy")) > MAX_ELEMENTS:
            raise _odd(self.name, "a tensor is too large")

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of ``y``."""
        sides = zip(
            (self.height, self.width),
            self.kernel,
            self.stride,
            self.padding,
            strict=True,
        )
        height, width = ((side + 2 * p - k) // s + 1 for side, k, s, p in sides)
        return height, width

    @property
    def taps(self) -> int:
        """Places of the kernel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def is_linear(self) -> bool:
        """Whether its images and its kernel are one pixel."""
        return self.height == self.width == self.taps == 1

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """Of an operand; ``dy`` has the shape of ``y``."""
        return _shapes(self)[tensor]

    def result(self, direction: Direction) -> tuple[int, ...]:
        """Shape of a product: of ``y``, of ``x`` or of ``w``."""
        return _shapes(self)[_RESULTS[direction]]

    def depth(self, direction: Direction) -> int:
        """Most terms that one number of a product is the sum of."""
        match direction:
            case "forward":
                return self.inputs * self.taps
            case "input":
                return self.outputs * self.taps
            case "weight":
                return self.batch * self.out[0] * self.out[1]

    def bits(self, tensor: Tensor) -> int:
        """Width of an operand, its sign included; a scale may use less.

        Between the first and the last layer, ``y`` is as exact as three moduli allow.
        """
        if tensor == "dy" or self.edge:
            return MOST_BITS
        room = _most(BASES[0]) // self.depth("forward")
        return min(max((room.bit_length() - 1) // 2 + 1, FEWEST_BITS), MOST_BITS)

    def basis(self, direction: Direction) -> ResidueBasis:
        """The smallest modulus that loses no bit of operands of usual form."""
        return _basis(self, direction, BASES)

    def basis_of(
        self, tensor: Tensor, directions: tuple[Direction, ...]
    ) -> ResidueBasis:
        """A tensor's modulus: of the widest product that it enters."""
        ours = (self.basis(each) for each in directions if tensor in OPERANDS[each])
        return max(ours, key=lambda basis: basis.modulus)


@lru_cache(_LAYERS)
def _shapes(layer: Layer) -> dict[Tensor, tuple[int, ...]]:
    """Of its operands."""
    return {
        "x": (layer.batch, layer.height, layer.width, layer.inputs),
        "w": (layer.outputs, *layer.kernel, layer.inputs),
        "dy": (layer.batch, *layer.out, layer.outputs),
    }


@lru_cache(_LAYERS)
def _basis(
    layer: Layer, direction: Direction, bases: tuple[ResidueBasis, ...]
) -> ResidueBasis:
    a, b = OPERANDS[direction]
    most = layer.depth(direction) << (layer.bits(a) + layer.bits(b) - 2)
    return next((each for each in bases if most < _most(each)), bases[-1])


@dataclass(frozen=True, slots=True)
class Forward:
    """One round: ``y`` of a call.

    Attributes:
        later: What ``Backward`` of the same call will ask for; without any, the servers
            forget the operands at once.
    """

    layer: Layer
    later: tuple[Direction, ...] = ()


@dataclass(frozen=True, slots=True)
class Backward:
    """One round: gradients of a call.

    Attributes:
        call: Number of its ``Forward`` among those of the step, from 0.
        wants: ``input``, ``weight`` or both, in this order.
    """

    call: int
    wants: tuple[Direction, ...]


Exchange = Forward | Backward


def _most(basis: ResidueBasis) -> int:
    """The largest worst case of a product of operands of usual form."""
    return basis.modulus // 2 * PEAK_TO_RMS_SQUARED


def _count(shape: tuple[int, ...]) -> int:
    found = 1
    for each in shape:
        found *= each
    return found


def _odd(name: str, why: str) -> MalformedError:
    return MalformedError(
        f"{quote_foreign(name)} is not a product that can be outsourced",
        why=why,
        code="bad-product",
    )
