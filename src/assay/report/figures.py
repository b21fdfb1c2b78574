"""Views drawn as SVG text that can stand in a page, light or dark, beside others of its kind.

Ink is `currentColor`, the ground is transparent, text stays text in the reader's own font, and the same view always
gives the same bytes. Series differ in colour, marker and dash, never in colour alone.
"""

from __future__ import annotations

import html
import io
import re
import textwrap
import warnings
from collections.abc import Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from assay.finding import Bars, Beside, Boxes, Curve, Gallery, Histogram, Matrix, Scatter, View
from assay.report.words import printable

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

# Told apart by people with any kind of colour vision, and each at least 3:1 against white and against #15181b.
COLOURS = ("#2f7fc1", "#d55e00", "#0a9170", "#a866b8", "#8d7a1e", "#5c7d8c", "#d2527f")
_MARKERS = "os^DvPX*"
_INK = "#010203"  # stands for currentColor until the drawing is done
_FONT = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif"
_WIDTH = 5.2  # inches, so 374 units: what a phone shows without shrinking the text
_BARS = 40  # more are not read; the ends are shown
_RC: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "assay",
    "svg.image_inline": True,
    "image.composite_image": False,
    "font.family": "DejaVu Sans",
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "xtick.major.width": 0.8,
    "ytick.major.width": 0.8,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.unicode_minus": True,
    "text.usetex": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "patch.linewidth": 0,
    "text.parse_math": False,
}


def draw(view: Curve | Scatter | Bars | Boxes | Histogram | Matrix, key: str = "") -> str:
    """One `<svg>` element; `key` sets its ids apart from those of other drawings on the same page."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # The reader's own matplotlibrc must not show; the backend is left alone, because a context does not give it back.
    ours: Any = {**{k: v for k, v in mpl.rcParamsDefault.items() if k != "backend"}, **_RC}
    with mpl.rc_context(ours), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's fonts draw it, not ours
        warnings.filterwarnings("ignore", message="constrained_layout not applied")  # long names; the picture stands
        figure = Figure(figsize=(_WIDTH, 3.1), layout="constrained")
        canvas: Any = FigureCanvasSVG(figure)
        _drawer(view, figure)
        out = io.StringIO()
        # savefig would draw everything once more before, for a layout that this one makes too
        canvas.print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _finish(out.getvalue(), view, key)


def standalone(svg: str) -> str:
    """The same drawing as a file of its own, with a ground and an ink that follow the reader's light or dark."""
    style = (
        "<style>svg{color:#1b1f24;background:#fff}"
        "@media(prefers-color-scheme:dark){svg{color:#e6e8eb;background:#15181b}}</style>"
    )
    head, rest = svg.split(">", 1)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{head}>{style}{rest}\n'


def _drawer(view: View, figure: Figure) -> None:
    match view:
        case Curve():
            _curve(view, figure)
        case Scatter():
            _scatter(view, figure)
        case Bars():
            _bars(view, figure)
        case Boxes():
            _boxes(view, figure)
        case Histogram():
            _histogram(view, figure)
        case Matrix():
            _matrix(view, figure)
        case Gallery():
            raise TypeError("A gallery is made of pictures, not drawn; the page shows it.")


def _finish(svg: str, view: View, key: str) -> str:
    """Our own head, unique ids, ink as currentColor; only tags are touched, never the words between them."""
    unique = blake2b(f"{key}\0{view.name}\0{svg}".encode("utf-8", "replace"), digest_size=5).hexdigest()
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None  # matplotlib always writes one
    body = svg[svg.index(">", box.end()) + 1 : svg.rindex("</svg>")]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)  # its `*` would reach the whole page

    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', body))

    def mend(tag: re.Match[str]) -> str:
        text = re.sub(r'\sid="([^"]*)"', lambda name: name[0] if name[1] in used else "", tag.group(0))
        text = re.sub(r'(\sid="|(?:xlink:)?href="#|url\(#)', rf"\g<1>f{unique}-", text)
        text = text.replace(_INK, "currentColor")
        # Sixty questions with three drawings each must fit one page: a hundredth of a point is nothing to the eye.
        text = re.sub(r"-?\d+\.\d{3,}", lambda n: f"{float(n[0]):.2f}".rstrip("0").rstrip("."), text)
        text = re.sub(r"\s+", " ", re.sub(r' transform="rotate\(-0 [^"]*"', "", text))
        return re.sub(r"(font(?:-family)?: [^;\"]*?)'DejaVu Sans'[^;\"]*", rf"\g<1>{_FONT}", text)

    body = re.sub(r">\s+<", "><", re.sub(r"<[^!?][^>]*>", mend, body)).strip()
    title, says = html.escape(printable(view.title)), html.escape(printable(view.says))
    label = f"{title}. {says}" if says else title
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'viewBox="{box.group(1)}" role="img" aria-label="{label}" stroke-linejoin="round" fill="currentColor">'
        f"<title>{title}</title>{body}</svg>"
    )


def _clip(text: str, size: int) -> str:
    text = " ".join(printable(text).split())
    return text if len(text) <= size else text[: size - 1] + "…"


def _name_axes(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel("\n".join(textwrap.wrap(_clip(x_label, 110), 58)))
    axes.set_ylabel("\n".join(textwrap.wrap(_clip(y_label, 76), 38)))


def _percent(axis: Any) -> None:
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1, decimals=0, symbol=" %"))


def _legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """Below the axes, where it hides nothing. Texts are set afterwards: a label that opens with _ would be dropped."""
    short = [_clip(label, 52) for label in labels]
    columns = max(1, min(4, len(short), 60 // (max(map(len, short)) + 6)))
    legend = figure.legend(
        handles,
        ["."] * len(handles),
        loc="outside lower center",
        ncols=columns,
        handlelength=2.2,
        columnspacing=1.4,
        borderpad=0.2,
    )
    for text, label in zip(legend.get_texts(), short, strict=True):
        text.set_text(label)


def _marks_above(axes: Axes, marks: tuple[Beside, ...]) -> None:
    """Labelled vertical lines. Labels stand above the axes, on as many rows as it takes to keep them apart."""
    for mark in marks:
        axes.axvline(mark.value, color=_INK, linewidth=1, linestyle=(0, (4, 2)), alpha=0.75)
    low, high = axes.get_xlim()  # after the lines, which may have widened the axes
    ends: list[float] = []  # where the last label of each row ends, as a share of the axes' width
    for mark in sorted(marks, key=lambda m: m.value):
        label = _clip(mark.label, 44)
        place = (mark.value - low) / (high - low)
        half = len(label) * 0.0092
        at = min(max(place, half - 0.05), 1.05 - half)
        row = next((i for i, end in enumerate(ends) if at - half > end + 0.02), len(ends))
        ends[row : row + 1] = [at + half]
        axes.annotate(
            label,
            (at, 1),
            (0, 3 + 11 * row),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8.5,
        )


def _marks_beside(axes: Axes, marks: tuple[Beside, ...]) -> None:
    """Labelled horizontal lines. Labels stand right of the axes, pushed apart where they would touch."""
    low, high = axes.get_ylim()
    taken = -1.0
    for mark in sorted(marks, key=lambda m: m.value):
        axes.axhline(mark.value, color=_INK, linewidth=1, linestyle=(0, (4, 2)), alpha=0.75)
        lines = textwrap.wrap(_clip(mark.label, 48), 15)
        half = 0.026 * len(lines)
        at = max((mark.value - low) / (high - low), taken + half)
        taken = at + half
        axes.annotate(
            "\n".join(lines),
            (1, at),
            (4, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="left",
            va="center",
            fontsize=8.5,
        )


def _curve(view: Curve, figure: Figure) -> None:
    axes = figure.subplots()
    handles, labels = [], []
    for i, line in enumerate(view.lines):
        colour, dash = COLOURS[i % len(COLOURS)], ("-", (0, (5, 2)), (0, (1, 1.4)))[i // len(COLOURS) % 3]
        if line.low is not None and line.high is not None:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.2, linewidth=0)
        handles += axes.plot(
            line.x,
            line.y,
            color=colour,
            linestyle=dash,
            marker=_MARKERS[i % len(_MARKERS)],
            markevery=max(1, len(line.x) // 12),
        )
        labels.append(line.label)
    xs = [x for line in view.lines for x in line.x]
    if view.diagonal:
        ends = (0.0, 1.0) if view.unit_y or not xs else (min(xs), max(xs))
        handles += axes.plot(ends, ends, color=_INK, alpha=0.6, linewidth=1, linestyle=(0, (2, 2)))
        labels.append("x = y")
    if view.unit_y:
        axes.set_ylim(-0.03, 1.03)
        _percent(axes.yaxis)
        if view.diagonal and xs and min(xs) >= 0 and max(xs) <= 1:
            axes.set_xlim(-0.03, 1.03)
            _percent(axes.xaxis)
    if 1 < len(set(xs)) <= 10 and all(float(x).is_integer() for x in xs):
        axes.set_xticks(sorted(set(xs)))
    if len(set(xs)) == 1:  # a single point has no span of its own
        axes.set_xlim(xs[0] - 0.5, xs[0] + 0.5)
    axes.grid(True, color=_INK, alpha=0.12, linewidth=0.6)
    _name_axes(axes, view.x_label, view.y_label)
    _marks_above(axes, view.marks)
    if len(handles) > 1:
        _legend(figure, handles, labels)


def _scatter(view: Scatter, figure: Figure) -> None:
    axes = figure.subplots()
    handles = []
    for i, group in enumerate(view.lines):
        alone = len(group.x) == 1
        handles += axes.plot(
            group.x,
            group.y,
            linestyle="none",
            color=COLOURS[i % len(COLOURS)],
            marker=_MARKERS[i % len(_MARKERS)],
            markersize=9 if alone else 4.5,
            alpha=1.0 if alone else 0.7,
            zorder=3 if alone else 2,
        )
    axes.grid(True, color=_INK, alpha=0.12, linewidth=0.6)
    axes.margins(0.08)
    _name_axes(axes, view.x_label, view.y_label)
    if len(handles) > 1:
        _legend(figure, handles, [group.label for group in view.lines])


def _bars(view: Bars, figure: Figure) -> None:
    import numpy as np

    values = np.asarray(view.values, dtype=float)
    shown, note = np.arange(len(values)), ""
    if len(values) > _BARS:
        order = np.argsort(values, kind="stable")
        shown = np.concatenate([order[: _BARS // 2], order[-_BARS // 2 :]])
        note = f" (the {_BARS // 2} lowest and the {_BARS // 2} highest of {len(values)})"
    labels = [_clip(view.labels[i], 26) for i in shown]
    lies = len(labels) > 12 or len(labels) * (max(map(len, labels), default=0) + 2) > 56
    values = values[shown]
    at = np.arange(len(values))
    error = None
    if view.low is not None and view.high is not None:
        low, high = np.asarray(view.low, dtype=float)[shown], np.asarray(view.high, dtype=float)[shown]
        error = np.stack([np.clip(values - low, 0, None), np.clip(high - values, 0, None)])  # 2 n
    style: dict[str, Any] = {
        "color": COLOURS[0],
        "alpha": 0.8,
        "error_kw": {"ecolor": _INK, "elinewidth": 1, "capsize": 2, "capthick": 1},
    }
    if lies:
        figure.set_size_inches(_WIDTH, 1.0 + 0.23 * max(4, len(values)))
        axes = figure.subplots()
        axes.barh(at, values, 0.72, xerr=error, **style)
        axes.set_yticks(at, labels)
        axes.invert_yaxis()
        axes.set_ylim(len(values) - 0.4, -0.6)
        _name_axes(axes, view.y_label + note, "")
        along: Any = axes.xaxis
    else:
        axes = figure.subplots()
        axes.bar(at, values, 0.72, yerr=error, **style)
        axes.set_xticks(at, labels)
        _name_axes(axes, "", view.y_label + note)
        along = axes.yaxis
    along.grid(True, color=_INK, alpha=0.12, linewidth=0.6)
    axes.set_axisbelow(True)
    if view.unit_y:
        (axes.set_xlim if lies else axes.set_ylim)(0, 1.02)
        _percent(along)
    (_marks_above if lies else _marks_beside)(axes, view.marks)


def _boxes(view: Boxes, figure: Figure) -> None:
    """Whiskers reach the farthest value within 1.5 boxes of the box; what lies beyond is drawn by itself."""
    axes = figure.subplots()
    full = [i for i, values in enumerate(view.values) if values]  # an empty one has no box
    line: dict[str, Any] = {"color": COLOURS[0], "linewidth": 1.2}
    if full:
        axes.boxplot(
            [view.values[i] for i in full],
            positions=full,
            widths=0.5,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": (*_rgb(COLOURS[0]), 0.22), "edgecolor": COLOURS[0], "linewidth": 1.2},
            medianprops={"color": _INK, "linewidth": 1.8},
            whiskerprops=line,
            capprops=line,
            flierprops={"marker": "o", "markersize": 3.5, "markerfacecolor": COLOURS[0], "markeredgewidth": 0},
        )
    room = max(8, 56 // max(1, len(view.labels)))  # letters beside each other that do not reach the next label
    axes.set_xticks(
        range(len(view.labels)), ["\n".join(textwrap.wrap(_clip(label, 3 * room), room)) for label in view.labels]
    )
    axes.set_xlim(-0.6, max(1, len(view.labels)) - 0.4)
    axes.grid(True, axis="y", color=_INK, alpha=0.12, linewidth=0.6)
    _name_axes(axes, view.x_label, view.y_label)
    if view.unit_y:
        axes.set_ylim(-0.03, 1.03)
        _percent(axes.yaxis)
    _marks_beside(axes, view.marks)


def _histogram(view: Histogram, figure: Figure) -> None:
    axes = figure.subplots()
    handles = []
    for i, (_, counts) in enumerate(view.counts):
        colour, dash = COLOURS[i % len(COLOURS)], ("-", (0, (5, 2)), (0, (1, 1.4)))[i % 3]
        axes.stairs(counts, view.edges, fill=True, color=colour, alpha=0.22)
        handles.append(axes.stairs(counts, view.edges, color=colour, linewidth=1.6, linestyle=dash))
    axes.set_ylim(bottom=0)
    axes.grid(True, axis="y", color=_INK, alpha=0.12, linewidth=0.6)
    _name_axes(axes, view.x_label, "inputs")
    if len(handles) > 1:
        _legend(figure, handles, [label for label, _ in view.counts])


def _matrix(view: Matrix, figure: Figure) -> None:
    """Deeper is more; by the square root where most cells are small, so that rare confusions show beside a diagonal.

    The deepest cell is a little over half opaque: ink stays readable on it in the light and in the dark.
    """
    import numpy as np

    values = np.array([[np.nan if v is None else v for v in row] for row in view.values], dtype=float)  # r c
    values = values.reshape(len(view.rows), len(view.columns))
    known = np.isfinite(values)
    largest = float(np.abs(values[known]).max()) if known.any() else 0.0
    depth = np.where(known, np.abs(values), 0.0) / (largest or 1.0)  # r c
    if np.median(depth) < 0.1:
        depth = np.sqrt(depth)
    cells = np.zeros((*values.shape, 4))  # r c rgba
    blue, orange = (_rgb(c) for c in COLOURS[:2])
    cells[..., :3] = np.where((np.nan_to_num(values) < 0)[..., None], orange, blue)
    cells[..., 3] = 0.58 * depth

    rows, columns = values.shape
    height = min(5.6, max(2.0, 1.1 + 3.9 * rows / max(1, columns)))
    figure.set_size_inches(_WIDTH, height)
    axes = figure.subplots()
    axes.imshow(cells, interpolation="none", aspect="auto")
    axes.spines[:].set_visible(False)
    size = 9 if max(rows, columns) <= 16 else 6.5
    note = ""
    if max(rows, columns) <= 40:
        names = [_clip(c, 16) for c in view.columns]
        steep = columns * (max(map(len, names), default=0) + 2) > 52
        axes.set_xticks(range(columns), names, fontsize=size, rotation=90 if steep else 0)
        axes.set_yticks(range(rows), [_clip(r, 22) for r in view.rows], fontsize=size)
        edges: dict[str, Any] = {"color": _INK, "alpha": 0.15, "linewidth": 0.6}
        axes.vlines(np.arange(columns + 1) - 0.5, -0.5, rows - 0.5, **edges)
        axes.hlines(np.arange(rows + 1) - 0.5, -0.5, columns - 0.5, **edges)
        axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    else:
        note = f"; {columns} columns, the deepest cell is {largest:.3g}"
    axes.tick_params(length=0)
    _name_axes(axes, view.column_label + note, view.row_label)
    if max(rows, columns) <= 16:
        texts = _cell_texts(values)
        for r in range(rows):
            for c in range(columns):
                axes.text(
                    c,
                    r,
                    texts[r][c],
                    ha="center",
                    va="center",
                    fontsize=8.5,
                    in_layout=False,
                    alpha=0.4 if values[r, c] == 0 else 1,
                )
    elif max(rows, columns) <= 40:
        axes.set_title(f"the deepest cell is {largest:.3g}", fontsize=8.5)


def _rgb(colour: str) -> tuple[float, float, float]:
    r, g, b = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return r, g, b


def _cell_texts(values: NDArray[np.float64]) -> list[list[str]]:  # r c
    import numpy as np

    known = values[np.isfinite(values)]
    whole = bool((known == np.round(known)).all())

    def text(v: float) -> str:
        if not np.isfinite(v):
            return "–"
        if v == 0 or (whole and abs(v) < 1e5):
            return f"{v:.0f}"
        return f"{v:.2f}" if abs(v) < 10 else f"{v:.3g}"

    return [[text(v) for v in row] for row in values]
