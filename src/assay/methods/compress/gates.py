r"""Gates that close for good: channels that are worth less to the task than they cost are learned, and removed.

Each channel i of edge j (surgery.py: channels that live and die together) has a weight theta. Wherever the channel is
read, for each input, by fresh noise,

    x ~ Logistic(0, 1),  s = sigmoid((theta + x) / tau),  g = 1[theta + x >= 0],  dg := ds;   P(open) = sigmoid(theta)

    L = L_task + alpha L_comp,   L_comp = sum_j c_j(t) lambda_j(t) / sum_j c_j lambda_j,   c_j(t) = sum_i g(theta_ji)

with lambda_j what a channel of the edge costs (bill.py). To first order a channel closes where what it does for the
task is less than alpha times its share of the cost. theta begins at ln(.995/.005) = 5.293; once it is 0 or less the
channel is closed, and never opens again.

Source: Passov, David and Netanyahu, "Gator: Customizable Channel Pruning of Neural Networks with Gating", ICANN 2021.
Print is silent, or says two things, where this says one:
    - eq. 1 divides by tau twice, and "sign" is a step; above is what it must mean.
    - lambda follows the channels that are closed for good, and no gradient passes through it: it would pull twice.
    - Gates stand where channels are read alone. The public code (EliPassov/gator) has others behind each normalisation
      as well, so that a channel passes two draws on its way.
    - With one learning rate for weights and gates, as printed, nothing closes: from 5.293 to 0 a gate that the task
      does not need takes 93 / (lr alpha lambda_j / sum c lambda) steps of plain descent, a million for ResNet-56 at
      alpha 1 with momentum 0.9, of the 35,000 that print takes. `rate` is the public code's: the gates of edge j learn
      at lr rate / (lambda_j / sum c lambda), so that cheap and dear edges feel the cost alike. None is print's.
    - `as_coded` divides by the cost of the network, each layer counted once, so that L_comp begins near 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from assay.errors import AssayError
from assay.methods.compress.bill import Bill
from assay.methods.compress.dependency import Edge
from assay.methods.compress.surgery import closed, masked, through_readers
from assay.methods.train.fit import Loss, into_training

CLOSED_AT_FIRST = 0.005
START = math.log((1 - CLOSED_AT_FIRST) / CLOSED_AT_FIRST)  # 5.293
RATE = 0.2
FALL = 93.4  # steps times rate: what plain descent on E[g] takes from START to 0
ROUNDS = 6  # with an alpha that doubles: the last is 32 times the first


def logistic(shape: tuple[int, ...], device: torch.device | str | None = None) -> Tensor:
    """Noise log u - log(1 - u) of torch's own generator, as dropout's is."""
    u = torch.rand(shape, device=device)
    return u.log() - (-u).log1p()


def gate(theta: Tensor, noise: Tensor, tau: float = 1.0) -> Tensor:  # k, *b k -> *b k
    """1 where it is open and 0 where not; the gradient is that of the sigmoid (straight through)."""
    soft = ((theta + noise) / tau).sigmoid()
    return ((theta + noise >= 0).to(soft) - soft).detach() + soft


class Gates:
    """The gates of all edges of a network, side by side; for `fit`: `loss(task)`, and `step` as its `after_step`.

    They learn by themselves, beside the weights: SGD with momentum, without weight decay, which would close or open
    them. As soon as the bill of what is open is at most `target` they are `settled`: noise ends, and what is trained on
    is the masked network. Not one channel more is closed than that takes. `multiple` counts, and at the end keeps,
    channels in multiples of so many, as hardware likes; an edge of fewer is left as it is. Edges that are not in
    `may_vanish` keep one channel at least.
    """

    def __init__(
        self,
        edges: Sequence[Edge],
        bill: Bill,
        *,
        alpha: float,
        lr: float,
        target: float = 0.0,
        rate: float | None = RATE,
        momentum: float = 0.9,
        tau: float = 1.0,
        closed_at_first: float = CLOSED_AT_FIRST,
        multiple: int = 1,
        may_vanish: Tensor | None = None,
        as_coded: bool = False,
    ) -> None:  # may_vanish: e
        for name, value in (("alpha", alpha), ("lr", lr), ("tau", tau), ("rate", 1.0 if rate is None else rate)):
            if not 0 < value < math.inf:
                raise AssayError(f"{name}={value} moves no gate; give a number above 0.")
        if not 0 < closed_at_first < 0.5:
            raise AssayError(
                f"closed_at_first={closed_at_first} is no chance with which an open gate begins; give one above 0 and "
                f"below 0.5, such as {CLOSED_AT_FIRST}."
            )
        if multiple < 1:
            raise AssayError(f"multiple={multiple} is no count of channels; give 1 to keep any number, or 8.")
        device = bill.sizes.device
        self.bill, self.alpha, self.momentum, self.tau, self.multiple = bill, alpha, momentum, tau, multiple
        self.target, self.edges = target, tuple(edges)
        sizes = bill.sizes.long()
        ends = sizes.cumsum(0).tolist()
        self.places = {e.name: slice(end - e.size, end) for e, end in zip(edges, ends, strict=True)}
        self.edge = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)  # c: of each channel
        self.theta = torch.full((len(self.edge),), math.log(1 / closed_at_first - 1), device=device)
        self.nudge = nn.Parameter(torch.zeros_like(self.theta))  # is 0, and has the gradient of theta
        self.open = torch.ones(len(self.edge), dtype=torch.bool, device=device)
        self.settled = torch.zeros((), dtype=torch.bool, device=device)
        self.lasting = torch.ones_like(sizes, dtype=torch.bool) if may_vanish is None else ~may_vanish.to(device)
        self._velocity = torch.zeros_like(self.theta)
        priced = bill.per_channel(bill.sizes)
        self.whole = bill.total(bill.sizes) if as_coded else bill.sizes @ priced
        share = (priced / self.whole).float()
        self.rates = torch.full_like(self._velocity, lr) if rate is None else (lr * rate / share)[self.edge]

    def counts(self) -> Tensor:  # -> e
        """Channels that are not closed."""
        return torch.zeros_like(self.bill.sizes).index_add_(0, self.edge, self.open.to(self.bill.sizes))

    def draw(self, n: int, which: slice = slice(None)) -> Tensor:  # -> n k
        """The values of these gates for n inputs; of settled ones only whether they are open."""
        theta, free = (self.theta + self.nudge)[which], self.open[which] & ~self.settled
        drawn = gate(theta, logistic((n, len(theta)), theta.device), self.tau)
        return torch.where(free, drawn, self.open[which].to(drawn))

    def cost(self) -> Tensor:  # -> ()
        """L_comp by one draw."""
        priced = (self.bill.per_channel(self.counts()) / self.whole).to(self.theta)
        return (self.draw(1)[0] * priced[self.edge]).sum()

    def loss(self, task: Loss) -> Loss:
        return lambda outputs, targets: task(outputs, targets) + self.alpha * self.cost()

    @torch.no_grad()
    def step(self) -> None:
        """One step of the gates down the gradient that is there, which is then gone; whoever reaches 0 is closed."""
        slope = self.nudge.grad
        if slope is None:
            return
        self._velocity.mul_(self.momentum).add_(slope)
        self._move(-self.rates * self._velocity)
        slope.zero_()

    @torch.no_grad()
    def nudged(self, lr: float) -> None:
        """The same where the optimiser of the weights, whose rate is `lr`, has moved `nudge` as it moves them.

        On a GPU it asks the host for nothing, so that it can stand in a step that is recorded.
        """
        self._move(self.rates / lr * self.nudge)
        self.nudge.zero_()

    def aim(self, target: float, alpha: float) -> None:
        """Go on to a smaller bill, from the gates as they are; what is closed stays closed."""
        self.target, self.alpha = target, alpha
        self.settled.fill_(False)
        self._velocity.zero_()

    @torch.no_grad()
    def force(self) -> None:
        """Close those that are likeliest to close, one after the other, until the bill is met."""
        self._close(self.open.clone())

    def _move(self, by: Tensor) -> None:  # c
        self.theta.add_(torch.where(self.open & ~self.settled, by, 0.0))
        self._close(self.open & (self.theta <= 0))

    def _close(self, wants: Tensor) -> None:  # c
        """One after the other, the furthest first, until the price is met: useless channels arrive together."""
        if not wants.is_cuda and not wants.any():
            return
        wants = wants & ~self.settled & ~self._last_ones()
        order = torch.where(wants, self.theta, math.inf).argsort(stable=True)
        goes, edges = wants[order], torch.arange(len(self.lasting), device=order.device)
        gone = ((self.edge[order][:, None] == edges) & goes[:, None]).to(self.bill.sizes).cumsum(0)  # c e
        counts = self.counts()
        cheap = self.bill.total(self._rounded(counts)) <= self.target
        met = self.bill.total(self._rounded(counts - gone)) <= self.target
        goes = goes & (met.cumsum(0) - met.long() == 0) & ~cheap
        self.open[order] = self.open[order] & ~goes
        self.settled |= met.any() | cheap

    def _last_ones(self) -> Tensor:  # -> c
        """The likeliest to stay of each edge that must last, one each."""
        order = self.theta.masked_fill(~self.open, -math.inf).argsort(descending=True, stable=True)
        place, edges = (torch.arange(len(of), device=order.device) for of in (order, self.lasting))
        first = torch.where(self.edge[order][:, None] == edges, place[:, None], len(order)).amin(0)  # e
        last = torch.zeros_like(self.open)
        last[order[first]] = self.lasting
        return last

    def _rounded(self, counts: Tensor) -> Tensor:  # *b e -> *b e
        return torch.where(counts >= self.multiple, counts - counts % self.multiple, counts)

    def round_off(self) -> None:
        """Close what the bill of settled gates did not count: the likeliest to close of each edge, down to a multiple,
        and edges that nothing feeds, or nobody reads, any more."""
        counts = self.counts()
        for j, excess in enumerate((counts - self._rounded(counts)).long().tolist()):
            mine = (self.open & (self.edge == j)).nonzero()[:, 0]
            self.open[mine[self.theta[mine].argsort(stable=True)[:excess]]] = False
        for name, kept in closed(self.edges, self.keep()).items():
            self.open[self.places[name]] = kept.to(self.open.device)

    def keep(self) -> dict[str, Tensor]:
        """Which channels of each edge are not closed, as `surgery.cut` takes it."""
        return {name: self.open[which].cpu() for name, which in self.places.items()}

    def fewest(self) -> dict[str, Tensor]:
        """One channel of each edge that must last, and of others none."""
        first = torch.zeros_like(self.open)
        first[[which.start for which in self.places.values()]] = self.lasting
        return {name: first[which].cpu() for name, which in self.places.items()}

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Inside, what the model's layers read passes the gates; outside it is as if there never had been any.

        Noise is for a model in training mode; else what is open comes through, and nothing else.
        """

        def value(edge: Edge, x: Tensor) -> Tensor:  # -> size, or n size
            which = self.places[edge.name]
            return self.draw(len(x), which) if model.training else self.open[which]

        hooks = through_readers(model, self.edges, value)
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def gate_lr(steps: int, alpha: float, *, rate: float = RATE, momentum: float = 0.9) -> float:
    """The learning rate with which a gate that the task does not need is closed after so many steps.

    The gradient of E[g] = E[sigmoid(theta + x)] is that of a sum of two logistic variables at theta, which is 1/60 at
    the start and 1/6 at 0.
    """
    return FALL * (1 - momentum) / (alpha * rate * steps)


def thin(
    gates: Gates,
    model: nn.Module,
    train: Callable[[Gates], None],
    price: Callable[[Mapping[str, Tensor]], float],
    wanted: float,
    *,
    rounds: int = ROUNDS,
    growth: float = 2.0,
) -> dict[str, Tensor]:
    """Train with gates until what they leave open costs what is `wanted`; which channels that are.

    Each round is one `train`, from the weights and gates of the last, with an alpha that grew. What the rounds leave
    undecided goes by theta, the lowest first. `price` is what is believed, of the network that is cut, without gates.
    A bill may be off, as one of seconds is: its target is set by what the price is of all channels and of as few as can
    be, and again by what it is of those that a settled round left.
    """
    bill, few = gates.bill, gates.lasting.to(gates.bill.sizes)
    bottom, least = float(bill.total(few)), price(gates.fewest())
    most = price(gates.keep())
    if least > wanted:
        raise AssayError(
            "The price cannot be met: with one channel of each edge that must last the network still costs "
            f"{least / most:.3g} of what it did; ask for more than that."
        )

    def nearer(target: float, reached: float) -> float:
        return bottom + (target - bottom) * (wanted - least) / max(reached - least, 1e-12)

    gates.target = nearer(float(bill.total(bill.sizes)), most)

    def met() -> bool:
        if gates.settled:
            gates.round_off()
        reached = price(gates.keep())
        if reached > wanted:
            lower, alpha = nearer(gates.target, reached), gates.alpha
            gates.aim(*((lower, alpha) if gates.settled else (gates.target, growth * alpha)))
        return reached <= wanted

    with gates.on(model):
        for _ in range(rounds):
            train(gates)
            if met():
                return gates.keep()
    while int(gates.open.sum()) > int(gates.lasting.sum()):
        gates.force()
        if met():
            return gates.keep()
    raise AssayError(f"The price cannot be met: {price(gates.keep()):.4g} is left where {wanted:.4g} was asked for.")


@torch.no_grad()
def remeasure(model: nn.Module, batches: Iterable[Tensor]) -> None:
    """Take means and variances of the batch normalisations anew, as their means over these batches: those of a training
    with gates are of noisier inputs. Batches weigh alike, so let them be of about one size. Nothing else of the model
    changes, nor do normalisations that are frozen (`into_training`)."""
    modes = [(m, m.training) for m in model.modules()]
    into_training(model)
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats and m.training]
    for module, training in modes:
        module.training = training
    held = [(m, m.momentum, m.training) for m in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum, norm.training = None, True  # the mean of all batches
    try:
        for x in batches:
            model(x)
    finally:
        for norm, momentum, training in held:
            norm.momentum, norm.training = momentum, training


def may_vanish(model: nn.Module, edges: Sequence[Edge], example: Tensor) -> Tensor:  # -> e
    """Edges that can lose their last channel, all of them together, and the answer still hangs on the input.

    By trial on one input and on the same with noise: the inner edges of residual blocks, for one.
    """
    draw = torch.Generator().manual_seed(0)
    one = example[:1]
    two = torch.cat([one, one + torch.randn(one.shape, generator=draw).to(one)])
    gone: dict[str, Tensor] = {}
    for edge in edges:
        tried = {**gone, edge.name: torch.zeros(edge.size, dtype=torch.bool)}
        with torch.no_grad():
            said = masked(model, edges, tried).eval()(two)
        if not torch.equal(said[0], said[1]):
            gone = tried
    return torch.tensor([edge.name in gone for edge in edges])
