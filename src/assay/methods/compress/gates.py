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
from assay.methods.train.fit import Loss

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
        multiple: int = 1,
        may_vanish: Tensor | None = None,
        as_coded: bool = False,
    ) -> None:  # may_vanish: e
        for name, value in (("alpha", alpha), ("lr", lr), ("tau", tau), ("rate", 1.0 if rate is None else rate)):
            if not 0 < value < math.inf:
                raise AssayError(f"{name}={value} moves no gate; give a number above 0.")
        if multiple < 1:
            raise AssayError(f"multiple={multiple} is no count of channels; give 1 to keep any number, or 8.")
        device = bill.sizes.device
        self.bill, self.alpha, self.momentum, self.tau, self.multiple = bill, alpha, momentum, tau, multiple
        self.target, self.edges = target, tuple(edges)
        sizes = bill.sizes.long()
        ends = sizes.cumsum(0).tolist()
        self.places = {e.name: slice(end - e.size, end) for e, end in zip(edges, ends, strict=True)}
        self.edge = torch.repeat_interleave(torch.arange(len(sizes), device=device), sizes)  # c: of each channel
        self.theta = torch.full((len(self.edge),), START, device=device, requires_grad=True)
        self.open = torch.ones(len(self.edge), dtype=torch.bool, device=device)
        self.settled = torch.zeros((), dtype=torch.bool, device=device)
        self.lasting = torch.ones_like(sizes, dtype=torch.bool) if may_vanish is None else ~may_vanish.to(device)
        self._velocity = torch.zeros_like(self.theta.detach())
        priced = bill.per_channel(bill.sizes)
        self.whole = bill.total(bill.sizes) if as_coded else bill.sizes @ priced
        share = (priced / self.whole).float()
        self.rates = torch.full_like(self._velocity, lr) if rate is None else (lr * rate / share)[self.edge]

    def counts(self) -> Tensor:  # -> e
        """Channels that are not closed."""
        return torch.zeros_like(self.bill.sizes).index_add_(0, self.edge, self.open.to(self.bill.sizes))

    def draw(self, n: int, which: slice = slice(None)) -> Tensor:  # -> n k
        """The values of these gates for n inputs; of settled ones only whether they are open."""
        theta, free = self.theta[which], self.open[which] & ~self.settled
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
        slope = self.theta.grad
        if slope is None:
            return
        self._velocity.mul_(self.momentum).add_(slope)
        self.theta.sub_(torch.where(self.open & ~self.settled, self.rates * self._velocity, 0.0))
        slope.zero_()
        self._close(self.open & (self.theta <= 0))

    def aim(self, target: float, alpha: float) -> None:
        """Go on to a smaller bill, from the gates as they are; what is closed stays closed."""
        self.target, self.alpha = target, alpha
        self.settled.fill_(False)
        self._velocity.zero_()

    def force(self) -> None:
        """Close those that are likeliest to close, one after the other, until the bill is met."""
        self._close(self.open.clone())

    def _close(self, wants: Tensor) -> None:  # c
        if self.settled or not wants.any():
            return
        wants[self._last_ones()] = False
        # one after the other, the furthest first, until the price is met: useless channels arrive together
        going = wants.nonzero()[:, 0]
        if not len(going):
            return
        going = going[self.theta[going].argsort(stable=True)]
        gone = torch.nn.functional.one_hot(self.edge[going], len(self.bill.sizes)).cumsum(0)  # k e
        met = self.bill.total(self._rounded(self.counts() - gone)) <= self.target
        needed = int(met.int().argmax()) + 1 if bool(met.any()) else len(going)
        self.open[going[:needed]] = False
        if met.any():
            self._round_off()
            self.settled.fill_(True)

    def _last_ones(self) -> Tensor:  # -> at most e
        """The likeliest to stay of each edge that must last, one each."""
        order = self.theta.masked_fill(~self.open, -math.inf).argsort(descending=True, stable=True)
        place = torch.arange(len(order), device=order.device)
        first = torch.zeros_like(self.lasting, dtype=torch.long)
        first.scatter_reduce_(0, self.edge[order], place, "amin", include_self=False)
        return order[first[self.lasting]]

    def _rounded(self, counts: Tensor) -> Tensor:  # *b e -> *b e
        return torch.where(counts >= self.multiple, counts - counts % self.multiple, counts)

    def _round_off(self) -> None:
        """Close the likeliest to close of each edge, down to a multiple."""
        counts = self.counts()
        for j, excess in enumerate((counts - self._rounded(counts)).long().tolist()):
            mine = (self.open & (self.edge == j)).nonzero()[:, 0]
            self.open[mine[self.theta[mine].argsort(stable=True)[:excess]]] = False
        for name, kept in closed(self.edges, self.keep()).items():  # who is fed by nothing, or read by nobody, goes too
            self.open[self.places[name]] = kept.to(self.open.device)

    def keep(self) -> dict[str, Tensor]:
        """Which channels of each edge are not closed, as `surgery.cut` takes it."""
        return {name: self.open[which].cpu() for name, which in self.places.items()}

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
    undecided goes by theta, the lowest first. `price` is what is believed in the end: where the bill said less, as one
    of seconds may, its target is lowered by as much.
    """
    least = float(gates.bill.total(gates.lasting.to(gates.bill.sizes)))
    if least > gates.target:
        share = least / float(gates.bill.total(gates.bill.sizes))
        raise AssayError(
            "The price cannot be met: with one channel of each edge that must last the network still costs "
            f"{share:.3g} of what it did; ask for more than that."
        )

    def met() -> bool:
        reached = price(gates.keep())
        if reached > wanted:
            lower = gates.target * (wanted / reached if gates.settled else 1.0)
            gates.aim(lower, gates.alpha * (1.0 if gates.settled else growth))
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
    with gates are of noisier inputs. Nothing else of the model changes."""
    norms = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
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
