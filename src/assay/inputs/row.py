"""Row: one line of a table, a number for each column. The changes and strengths are Assay's own.

A batch is n by d: numbers and integers as they are, a category as the place of its name among the column's categories,
a boolean as 0 or 1, a missing cell as NaN in the columns where the model takes that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from assay.data.column import Column, ColumnType, Table, columns_of
from assay.errors import AssayError, ShapeError
from assay.inputs.change import Change
from assay.inputs.features import Features
from assay.inputs.kind import Bounded
from assay.inputs.reach import Reach
from assay.inputs.sensor import chosen, noisy, stepped
from assay.inputs.show import Cells

CELLS = (0.02, 0.05, 0.1, 0.2, 0.35)
KEYS = ((9, 9), (2, 2), (1, 3), (2, 4), (3, 5), (4, 6), (5, 7), (6, 8), (7, 9), (8, 0))  # beside each digit


@dataclass(frozen=True)
class Row(Bounded):
    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        if not self.columns:
            raise ShapeError("A row has at least one column, got none.")
        twice = [name for name, count in Counter(c.name for c in self.columns).items() if count > 1]
        if twice:
            raise AssayError(f"Two columns are called {twice[0]!r}; give each a name of its own.")

    @classmethod
    def of(
        cls,
        table: Table,
        *,
        units: Mapping[str, str] | None = None,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        fixed: Sequence[str] = (),
    ) -> Row:
        """Rows like those of this table: types, bounds, categories and whether cells are missing are what it shows."""
        given = columns_of(table)
        units, bounds = units or {}, bounds or {}
        for what, names in (("unit", units), ("bound", bounds), ("fixed column", fixed)):
            strange = [name for name in names if name not in given]
            if strange:
                raise AssayError(
                    f"There is a {what} for {strange[0]!r}, no column of {', '.join(given)}; mend the name."
                )
        return cls(
            tuple(
                Column.of(name, cells, unit=units.get(name, ""), bounds=bounds.get(name), fixed=name in fixed)
                for name, cells in given.items()
            )
        )

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.columns),)

    @property
    def ranges(self) -> tuple[tuple[float, float], ...]:
        return tuple((c.low, c.high) for c in self.columns)

    @property
    def reach(self) -> Reach:
        """Columns that can change; integers in steps of one, categories and booleans all or nothing."""
        coded = self._of("category", "boolean")
        span = self.edges()[1]
        step = torch.where(self._of("integer"), 1.0, torch.where(coded, span, 0.0))
        return self.reach_with(
            free=torch.tensor([not c.fixed for c in self.columns]),
            step=step.double(),
            choices=torch.where(coded, span.long() + 1, 0),
        )

    def encode(self, table: Table) -> Tensor:  # -> n d
        """The columns of a table as a batch; others that it has are left out."""
        given = columns_of(table)
        lost = [c.name for c in self.columns if c.name not in given]
        if lost:
            raise AssayError(f"The table has no column {lost[0]!r}, only {', '.join(given)}; the model was shown it.")
        columns = [c.encode(given[c.name]) for c in self.columns]
        x = torch.from_numpy(np.stack(columns, 1)).float()
        self.check(x)
        return x

    def typed(self, x: Tensor) -> Tensor:  # n d -> n d
        return torch.where(self._of("integer", "category", "boolean").to(x.device), x.round(), x)

    def may_miss(self) -> Tensor:  # -> d
        return torch.tensor([c.missing for c in self.columns])

    def place(self, index: tuple[int, ...]) -> str:
        return f"the column {self.columns[index[0]].name!r}"

    def changes(self) -> Iterator[Change[Tensor]]:
        """Those of which the table has columns: no slips of categories where there are none."""
        cells = "strength: the share of cells."
        low, span = self.edges()
        whole, measured = self._of("integer"), self._of("integer", "number")
        blank = torch.tensor([math.nan if c.missing else c.usual for c in self.columns], dtype=torch.float64)
        yield Change(
            "missing-cells",
            f"Empty where the model takes that, else the column's usual value; {cells}",
            partial(missing, blank=blank),
            (0.03, 0.07, 0.15, 0.3, 0.5),
        )
        yield Change("swapped-cells", f"Cells exchanged with another row's; {cells}", swapped, CELLS)
        if measured.any():
            yield Change(
                "slipped-digits",
                f"One of the first three digits is the key beside it; {cells}",
                partial(slipped, whole=whole, measured=measured, span=span),
                CELLS,
            )
            yield Change(
                "moved-points",
                f"Ten times too large or too small: a decimal point, a unit; {cells}",
                partial(ten_times, measured=measured),
                CELLS,
            )
            yield Change(
                "noise",
                "Normal noise on numbers; strength: its deviation, of the range.",
                partial(noisy, span=torch.where(measured, span, 0.0)),
                (0.01, 0.02, 0.04, 0.08, 0.15),
            )
            yield Change(
                "rounding",
                "Numbers on a coarse scale; strength: how many steps the range has.",
                partial(rounded, low=low, span=torch.where(measured, span, 0.0), whole=whole),
                (100.0, 50.0, 20.0, 10.0, 4.0),
            )
        coded = self._of("category", "boolean")
        if coded.any():
            yield Change(
                "slipped-categories",
                f"Another category of the column; {cells}",
                partial(recoded, count=torch.where(coded, span + 1, 1.0)),
                CELLS,
            )

    def features(self, x: Tensor) -> Features:  # d
        return Features(tuple(c.name for c in self.columns), torch.arange(len(self.columns)))

    def show(self, x: Tensor) -> Cells:  # d
        values = x.detach().cpu().double().tolist()
        return Cells(tuple((c.name, c.told(v)) for c, v in zip(self.columns, values, strict=True)))

    def _of(self, *types: ColumnType) -> Tensor:  # -> d
        return torch.tensor([c.type in types for c in self.columns])


def missing(x: Tensor, share: float, rng: torch.Generator, *, blank: Tensor) -> Tensor:  # n d -> n d
    return torch.where(chosen(share, x.shape, rng, like=x), blank.to(x), x)


def swapped(x: Tensor, share: float, rng: torch.Generator) -> Tensor:  # n d -> n d
    """Rows are paired at random, and a pair exchanges `share` of its cells; of an odd number one row has no partner."""
    order = torch.randperm(len(x), generator=rng, device=x.device)
    half = len(x) // 2
    first, second = order[:half], order[half : 2 * half]
    swap = chosen(share, (half, x.shape[1]), rng, like=x)
    changed = x.clone()
    changed[first] = torch.where(swap, x[second], x[first])
    changed[second] = torch.where(swap, x[first], x[second])
    return changed


def slipped(
    x: Tensor, share: float, rng: torch.Generator, *, whole: Tensor, measured: Tensor, span: Tensor
) -> Tensor:  # n d -> n d
    """One of the first three digits becomes the one beside it on a keyboard: |x| + (d' - d) 10^p, with x's sign."""
    hit = chosen(share, x.shape, rng, like=x) & measured.to(x.device)
    deep = torch.randint(3, x.shape, generator=rng, device=x.device)
    side = torch.randint(2, x.shape, generator=rng, device=x.device)
    size = torch.where(x == 0, span.to(x).expand_as(x), x.abs()).double().clamp_min(torch.finfo(torch.float32).tiny)
    place = torch.log10(size * (1 + 1e-6)).floor() - deep  # 0.01 is a little less in single precision
    place = torch.where(whole.to(x.device), place.clamp_min(0), place)  # a whole number has no digit behind the point
    unit = 10.0**place
    # 0.7 is a little less in single precision, and its digit is 7
    digit = ((x.double().abs() / unit + 1e-4).floor() % 10).nan_to_num().long()
    typed = torch.tensor(KEYS, device=x.device)[digit, side]
    wrong = x.double().abs() + (typed - digit) * unit
    return torch.where(hit, torch.where(x < 0, -wrong, wrong).to(x), x)


def ten_times(x: Tensor, share: float, rng: torch.Generator, *, measured: Tensor) -> Tensor:  # n d -> n d
    hit = chosen(share, x.shape, rng, like=x) & measured.to(x.device)
    larger = torch.randint(2, x.shape, generator=rng, device=x.device).bool()
    return torch.where(hit, torch.where(larger, x * 10, x / 10), x)


def rounded(
    x: Tensor, steps: float, _rng: torch.Generator, *, low: Tensor, span: Tensor, whole: Tensor
) -> Tensor:  # n d -> n d
    """The nearest of low + k span / steps; of an integer column the steps are whole."""
    step = span / steps
    return stepped(x, torch.where(whole & (step > 0), step.round().clamp_min(1), step), low)


def recoded(x: Tensor, share: float, rng: torch.Generator, *, count: Tensor) -> Tensor:  # n d -> n d
    """Another code of those the column has, each with equal chance."""
    hit = chosen(share, x.shape, rng, like=x)
    count = count.to(x)
    u = torch.rand(x.shape, generator=rng, device=x.device, dtype=torch.float64).to(x)
    further = 1 + (u * (count - 1)).floor().clamp_max((count - 2).clamp_min(0))
    return torch.where(hit & (count > 1), (x + further) % count, x)
