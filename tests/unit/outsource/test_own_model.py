"""A user's own model: PyTorch around it is as ever, and its steps have one trace a form."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from sealift.errors import IntegrityError, JobError, UsageError
from sealift.numeric.kernels import portable_kernels
from sealift.numeric.residues import U32
from sealift.outsource.masked import MaskedProducts, Share
from sealift.outsource.module.model import OutsourcedModel, outsource
from sealift.outsource.module.server import Products
from sealift.outsource.plain import PlainProducts
from sealift.outsource.terms import Backward, Direction, Layer
from sealift.outsource.trace import StepKind
from tests.sim.reached import Reached
from tests.sim.shareservers import InPlaceServers

KERNELS = portable_kernels()
ROWS, CLASSES = 12, 4
Labelled = tuple[Tensor, Tensor]


def masked() -> MaskedProducts:
    return MaskedProducts(InPlaceServers(), KERNELS)


class Lying(PlainProducts):
    """Found out at the verdict."""

    def settle(self) -> None:
        raise IntegrityError("P (a) sent a wrong answer", code="wrong-product")


def masked_liar() -> MaskedProducts:
    def bend(share: Share, layer: Layer, direction: Direction, answer: U32) -> U32:
        return answer ^ (share == "M")

    return MaskedProducts(InPlaceServers(bend), KERNELS)


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(12, CLASSES),
    )


def batch(seed: int = 0, rows: int = ROWS) -> Labelled:
    torch.manual_seed(seed)
    return torch.randn(rows, 2, 4, 4), torch.randint(CLASSES, (rows,))


def train(
    model: nn.Module,
    steps: int,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW,
) -> list[float]:
    model.train()
    optimizer, losses = make(model.parameters(), lr=0.01), []
    for number in range(steps):
        x, y = batch(number)
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def weights(model: nn.Module) -> list[Tensor]:
    return [each.detach().clone() for each in model.state_dict().values()]


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(map(torch.equal, one, two))


@pytest.fixture
def reached() -> Reached:
    return Reached()


@pytest.fixture
def model(reached: Reached) -> Iterator[OutsourcedModel]:
    with outsource(make_model(), reached, KERNELS, seed=0) as found:
        yield found


def test_twenty_steps_on_masked_shares_equal_the_integer_reference() -> None:
    def trained(make: Callable[[], Products]) -> list[Tensor]:
        with outsource(make_model(), Reached(make), KERNELS, seed=0) as model:
            train(model, 20)
            assert model.outsourced().served == 19  # the first is made here
            return weights(model)

    assert same(trained(masked), trained(PlainProducts))


@pytest.mark.parametrize("last", [False, True])
def test_training_follows_float32(last: bool, model: OutsourcedModel) -> None:
    plain = make_model()
    if last:
        for each in (model, plain):
            each.to(memory_format=torch.channels_last)
    for found, expected in zip(train(model, 12), train(plain, 12), strict=True):
        assert found == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize(
    "make",
    [
        lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True),
        torch.optim.AdamW,
        torch.optim.RMSprop,
    ],
)
def test_optimizers_are_as_ever(
    make: Callable[..., torch.optim.Optimizer], model: OutsourcedModel
) -> None:
    expected = train(make_model(), 3, make)
    assert train(model, 3, make) == pytest.approx(expected, abs=0.02)


def test_an_optimizer_with_a_closure(model: OutsourcedModel) -> None:
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x, y = batch()

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        return loss

    first = optimizer.step(closure)
    assert cross_entropy(model(x), y) < first


def test_the_model_stays_itself(model: OutsourcedModel) -> None:
    plain = make_model()
    assert isinstance(model, nn.Sequential)
    assert list(model.state_dict()) == list(plain.state_dict())
    train(model, 2)
    plain.load_state_dict(model.state_dict())
    twin = copy.deepcopy(model)
    assert type(twin) is nn.Sequential
    x, _ = batch()
    for each in (model, twin, plain):
        each.eval()
    model(x)  # the first of its form
    with torch.no_grad():
        assert torch.equal(twin(x), plain(x))
        torch.testing.assert_close(model(x), plain(x), atol=0.05, rtol=0)


def test_a_closed_model_is_plain(reached: Reached) -> None:
    model: nn.Module = make_model()
    with outsource(model, reached, KERNELS, seed=0):
        assert type(model) is not nn.Sequential
    assert type(model) is nn.Sequential
    assert [type(each) for each in model] == [type(each) for each in make_model()]
    assert reached.closed
    train(model, 1)
    with outsource(model, reached, KERNELS, seed=0):  # and can be outsourced again
        train(model, 2)


def test_a_model_of_one_module(reached: Reached) -> None:
    module = nn.Linear(3, 2)
    with outsource(module, reached, KERNELS, seed=0) as model:
        for _ in range(2):
            model(torch.randn(5, 3)).sum().backward()
        assert type(copy.deepcopy(model)) is nn.Linear
        assert model.outsourced().served == 1
    assert type(module) is nn.Linear


def test_servers_hear_of_a_form_once(reached: Reached, model: OutsourcedModel) -> None:
    train(model, 3)
    for rows in (5, 5, 5, 7):
        model.eval()(batch(rows=rows)[0])
    train(model, 1)
    kinds = [[(k.phase, k.rows) for k in each.known] for each in reached.opened]
    assert kinds == [
        [("train", ROWS)],
        [("evaluate", 5), ("train", ROWS)],
        [("evaluate", 5), ("evaluate", 7), ("train", ROWS)],
    ]


def test_first_and_last_called_are_edges(
    reached: Reached, model: OutsourcedModel
) -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.middle, self.first = (nn.Linear(3, 3) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.middle(self.first(x)))

    with outsource(Backwards(), reached, KERNELS, seed=0) as other:
        for _ in range(2):
            other(torch.randn(2, 3)).sum().backward()
    trace = reached.opened[-1].of(StepKind("train", 2))
    edges = {e.layer.name: e.layer.edge for e in trace if not isinstance(e, Backward)}
    assert edges == {"first": True, "middle": False, "last": True}


@pytest.mark.parametrize("make", [Lying, masked_liar])
def test_a_failed_step_changes_nothing(make: Callable[[], Products]) -> None:
    with outsource(make_model(), Reached(make), KERNELS, seed=0) as model:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = batch()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        before = [each.detach().clone() for each in model.parameters()]
        with pytest.raises(IntegrityError, match="wrong answer"):
            cross_entropy(model(x), y).backward()
        assert all(each.grad is None for each in model.parameters())
        for again in (optimizer.step, lambda: model(x), lambda: model.eval()(x)):
            with pytest.raises(IntegrityError, match="wrong answer"):
                again()
        assert same(before, [each.detach() for each in model.parameters()])


class Moving(nn.Module):
    """A forward call writes into all that a model holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)
        self.follower = nn.Parameter(torch.zeros(3, 3), requires_grad=False)
        self.register_buffer("seen", torch.zeros(1), persistent=False)
        self.register_buffer("last", None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.layer(x))
        with torch.no_grad():
            self.follower.lerp_(self.layer.weight, 0.5)
            self.seen = torch.cat([self.seen, y.detach()[0, :1]])
            self.last = y.detach().clone()
        return y


def state_of(model: Moving) -> list[Tensor | None]:
    kept = (*model.parameters(), *model.buffers(), model.last)
    return [None if each is None else each.detach().clone() for each in kept]


@pytest.mark.parametrize("training", [True, False])
def test_a_failed_step_leaves_nothing_in_parameters_or_buffers(training: bool) -> None:
    with outsource(Moving(), Reached(masked_liar), KERNELS, seed=0) as model:
        model.train(training)
        x = torch.randn(ROWS, 3)
        y = model(x)  # the first of its form, made here
        if training:
            y.sum().backward()
        model.last = None
        before = state_of(model)
        follower = model.follower
        with pytest.raises(IntegrityError, match=r"M .cloud-m."):
            model(x).sum().backward()
        found = state_of(model)
        assert len(found) == len(before)
        assert found[-1] is None
        assert same(before[:-1], found[:-1])
        assert model.follower is follower
    assert same(before[:-1], state_of(model)[:-1])


def test_numbers_that_are_not_finite_leave_nothing_either(
    model: OutsourcedModel,
) -> None:
    train(model, 2)
    before = weights(model)
    with pytest.raises(JobError):
        (model(batch()[0]) * torch.nan).sum().backward()
    assert same(before, weights(model))


def test_no_optimizer_steps_before_the_verdict(model: OutsourcedModel) -> None:
    train(model, 1)
    x, y = batch()
    cross_entropy(model(x), y)  # and no backward
    mine = torch.optim.SGD(model.parameters(), lr=0.1)
    others = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)
    others.step()
    with pytest.raises(JobError, match="asked for the optimizer's step") as caught:
        mine.step()
    assert caught.value.code == "other-operations"
    train(model, 1)  # the step was ended with zeros


def test_numbers_that_are_not_finite_name_their_layer(model: OutsourcedModel) -> None:
    train(model, 2)
    x, y = batch()
    with pytest.raises(JobError, match="5") as caught:
        (cross_entropy(model(x), y) * torch.nan).backward()
    assert caught.value.code == "operand-not-finite"
    assert model[5].weight.grad is None
    train(model, 1)


def test_shapes_that_change_within_a_form_are_named(model: OutsourcedModel) -> None:
    train(model, 1)
    x = torch.randn(ROWS, 2, 5, 5)
    with pytest.raises(JobError, match=r"asked for 0; .*a call of 0") as caught:
        model(x)
    assert caught.value.code == "other-operations"
    train(model, 2)


def test_weights_that_are_thawed_make_another_form(
    reached: Reached, model: OutsourcedModel
) -> None:
    model[0].requires_grad_(False)
    train(model, 2)
    assert model[0].weight.grad is None
    model[0].requires_grad_(True)
    train(model, 2)
    assert model[0].weight.grad is not None
    first, second = (each.of(StepKind("train", ROWS)) for each in reached.opened)
    assert len(second) == len(first) + 1


def test_torn_steps_are_ended_with_zeros(model: OutsourcedModel) -> None:
    train(model, 2)
    served = model.outsourced().served

    def tear(*_: object) -> None:
        raise KeyboardInterrupt

    hook = model[3].register_forward_hook(tear)
    with pytest.raises(KeyboardInterrupt):
        model(batch()[0])
    hook.remove()
    train(model, 2)
    assert model.outsourced().served == served + 3


def test_outputs_that_nobody_differentiates(model: OutsourcedModel) -> None:
    x, _ = batch()
    kept = model(x)  # a look at the output, before training
    train(model, 3)
    for _ in range(3):
        kept = model(x)
    train(model, 2)
    assert kept.shape == (ROWS, CLASSES)
    assert model.outsourced().served == 2 + 3 + 2


def test_two_calls_in_a_step(model: OutsourcedModel) -> None:
    """As in siamese nets; one of them without gradients."""
    plain = make_model()
    for each in (model, plain):
        each[1].eval()
        each.zero_grad()
    (one, _), (two, _) = batch(1), batch(2)
    for _ in range(3):
        found = []
        for each in (model, plain):
            each.zero_grad()
            with torch.no_grad():
                target = each(two)
            (each(one) - each(two) - target).square().sum().backward()
            found.append(each[5].weight.grad)
        torch.testing.assert_close(*found, atol=0.05, rtol=0.02)
    assert model.outsourced().served == 2 * 2  # and the call without gradients


def test_tied_weights_and_activation_checkpoints(reached: Reached) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            y = checkpoint(lambda x: self.one(x).tanh(), x, use_reentrant=False)
            return self.two(self.one(y))

    plain = Tied()
    with outsource(Tied(), reached, KERNELS, seed=0) as model:
        x = torch.randn(6, 4)
        for _ in range(3):
            for each in (model, plain):
                each.zero_grad()
                each(x).square().sum().backward()
            found, expected = model.one.weight.grad, plain.one.weight.grad
            torch.testing.assert_close(found, expected, atol=0.1, rtol=0.05)
        assert model.outsourced().served == 2


def test_accumulated_gradients_are_those_of_each_step(model: OutsourcedModel) -> None:
    plain = make_model()
    for _ in range(2):
        for each in (model, plain):
            each.zero_grad()
            for number in range(3):
                x, y = batch(number)
                cross_entropy(each(x), y).backward()
    found, expected = (each[5].weight.grad for each in (model, plain))
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)
    assert model.outsourced().served == 5


def test_hooks_and_submodules_are_as_ever(model: OutsourcedModel) -> None:
    seen: list[torch.Size] = []
    model[5].register_forward_hook(lambda *a: seen.append(a[2].shape))
    train(model, 2)
    assert seen == [(ROWS, CLASSES)] * 2
    assert model[5](torch.randn(3, 12)).shape == (3, CLASSES)


def test_what_stays_is_told_with_its_share(model: OutsourcedModel) -> None:
    train(model, 2)
    report = model.outsourced()
    assert [bool(each.stays) for each in report.modules] == [
        False, *[True] * 4, False,
    ]  # fmt: skip
    assert sum(each.share for each in report.modules) == pytest.approx(1)
    assert "BatchNorm2d" in str(report)
    assert "1 steps on servers, 1 " in str(report)


class Reader(nn.Module):
    """A small transformer of torch's own layers, behind a convolution along the text."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.near = nn.Conv1d(8, 8, 3, padding=1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        near = self.near(self.table(tokens).transpose(1, 2)).transpose(1, 2)
        logits: Tensor = self.head(self.layer(near).mean(1))
        return logits


def test_a_transformer_trains_as_in_float32_and_says_what_stays(
    reached: Reached,
) -> None:
    torch.manual_seed(5)
    plain = Reader()
    tokens = torch.randint(11, (ROWS, 6))
    label = tokens[:, 0] % CLASSES

    def learn(model: nn.Module) -> list[float]:
        optimizer, losses = torch.optim.AdamW(model.parameters(), lr=0.01), []
        for _ in range(30):
            optimizer.zero_grad()
            loss = cross_entropy(model(tokens), label)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    ours = copy.deepcopy(plain)
    expected = learn(plain)
    with outsource(ours, reached, KERNELS, seed=1) as model:
        found = learn(model)
        stays = {each.name: each.stays for each in model.outsourced().modules}
        model.eval()
        with torch.no_grad():
            assert (model(tokens).argmax(1) == label).all()
    assert expected[-1] < 0.2
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 0.1
    assert "looks up rows" in stays["table"]
    assert "row and head of attention" in stays["layer.self_attn"]
    served = {name for name, why in stays.items() if not why}
    assert served == {"near", "layer.linear1", "layer.linear2", "head"}


def test_a_model_without_products_is_refused(reached: Reached) -> None:
    with pytest.raises(UsageError) as caught:
        outsource(nn.Sequential(nn.ReLU()), reached, KERNELS, seed=0)
    assert caught.value.code == "nothing-to-outsource"


def test_inference_mode(model: OutsourcedModel) -> None:
    x, _ = batch()
    model.eval()
    with torch.inference_mode():
        first, second = model(x), model(x)
    torch.testing.assert_close(first, second, atol=0.05, rtol=0)
    assert model.outsourced().served == 1


def test_autocast_trains_in_float32_on_servers(model: OutsourcedModel) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        x, y = batch(number)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(model(x.bfloat16()), y)
        loss.backward()
        optimizer.step()
    assert model.outsourced().served == 2
    assert all(p.dtype == torch.float32 for p in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_a_model_of_another_type_is_refused_by_its_name(dtype: torch.dtype) -> None:
    with pytest.raises(UsageError, match=str(dtype)) as refused:
        outsource(make_model().to(dtype), Reached(), KERNELS, seed=0)
    assert refused.value.code == "nothing-to-outsource"


def test_a_batch_of_another_type_is_refused_by_its_name(model: OutsourcedModel) -> None:
    with pytest.raises(UsageError, match=r"torch\.float64") as refused:
        model(batch()[0].double())
    assert refused.value.code == "bad-operand"


@pytest.mark.filterwarnings("ignore")  # torch's own, of what it does not trace
def test_a_compiled_model_runs_on_servers(model: OutsourcedModel) -> None:
    compiled = torch.compile(model, backend="eager")

    @torch.compile(backend="eager")
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(compiled(x), y)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(3):
        optimizer.zero_grad()
        loss_of(*batch(number)).backward()
        optimizer.step()
    assert model.outsourced().served == 2


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_compiles_itself_runs_on_servers(model: OutsourcedModel) -> None:
    model.compile(backend="eager")
    train(model, 3)
    assert model.outsourced().served == 2


def test_a_report_says_what_rounding_changed(model: OutsourcedModel) -> None:
    train(model, 2)
    first, *_, last = model.outsourced().modules
    for each in (first, last):
        assert {*each.rounding} == {"x", "w", "dy"}
        assert all(0 < error.relative < 0.05 for error in each.rounding.values())
        assert "rounding error: " in str(each)


@pytest.mark.filterwarnings("ignore:.*rounded away")  # of the second layer, some are
@pytest.mark.parametrize("factor", [1.0, 1e6])
def test_an_outlier_in_a_batch_does_not_hide_the_other_rows(factor: float) -> None:
    torch.manual_seed(1)
    x = torch.randn(256, 8)
    y = (x @ torch.randn(8) > 0).long()
    x[::64] *= factor

    def accuracy(model: nn.Module) -> float:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
        for start in 16 * list(range(0, 256, 64)):
            optimizer.zero_grad()
            part = slice(start, start + 64)
            cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            return float((model(x).argmax(1) == y).float().mean())

    def made() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))

    with outsource(made(), Reached(), KERNELS, seed=0) as model:
        assert accuracy(model) > accuracy(made()) - 0.05


def test_a_report_says_what_each_module_cost_here_and_at_servers() -> None:
    with outsource(make_model(), Reached(masked), KERNELS, seed=0) as model:
        train(model, 3)
        first, norm, *_, last = model.outsourced().modules
    assert norm.cost is None
    for each, operands, answers in (
        (first, 12 * 16 * 2 + 3 * 9 * 2 + 12 * 16 * 3, 12 * 16 * 3 + 3 * 9 * 2),
        (last, 12 * 12 + 4 * 12 + 12 * 4, 12 * 4 + 12 * 12 + 4 * 12),
    ):
        assert each.cost is not None
        assert each.cost.exchanges == 2 * 2  # forward and backward, of two steps
        assert each.cost.here_s > 0 < each.cost.there_s
        assert each.cost.crossed_bytes == 2 * 4 * (2 * operands + 3 * answers)
        assert "4 exchanges" in str(each)
