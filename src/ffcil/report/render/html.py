"""The pieces of HTML that the page is put together from. Text that comes from files is escaped by whoever adds it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape

from ffcil.report.render.specs import Spec


def classes(kind: str) -> str:
    """The attribute, where there is something to put there."""
    return f' class="{kind}"' if kind else ""


def plot(spec: Spec) -> str:
    """A figure's place and, beside it, its specification; `<` is written so that no text can close the element."""
    text = json.dumps(spec, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    place = f'<div class="plot" style="min-height:{int(spec["layout"]["height"])}px"></div>'
    return f'{place}<script type="application/json">{text}</script>'


def fold(summary: str, inside: str, kind: str = "", *, is_open: bool = False) -> str:
    """Something that opens. `summary` is plain text, `inside` HTML."""
    return f"<details{classes(kind)}{' open' if is_open else ''}><summary>{escape(summary)}</summary>{inside}</details>"


def figure(title: str, plots: Sequence[tuple[str, Spec]], caption: str) -> str:
    """Plots with headings of their own under one title; `caption` is HTML."""
    parts = "".join(f"<div><h4>{escape(name)}</h4>{plot(spec)}</div>" for name, spec in plots)
    below = f"<figcaption>{caption}</figcaption>"
    return f'<h3>{escape(title)}</h3><figure><div class="grid two">{parts}</div>{below}</figure>'


def head(name: str, kind: str = "") -> str:
    """A column's head; pressing it sorts. `name` is HTML."""
    return f'<th scope="col"{classes(kind)}><button type="button">{name}</button></th>'


def cell(inside: str, value: float | None, kind: str = "") -> str:
    """A number's cell; `value` is what it is sorted by."""
    return f'<td class="number {kind}" data-value="{"" if value is None else value}">{inside}</td>'


def tbody(lines: Sequence[str]) -> str:
    return f"<tbody>{''.join(lines)}</tbody>"


def table(heads: Sequence[str], bodies: str, kind: str, identity: str = "") -> str:
    """A table that its heads sort, scrolling by itself where it is too wide; `bodies` is one <tbody> or several."""
    about = f'class="sortable {kind}"' + (f' id="{identity}" data-shown="average"' if identity else "")
    return f'<div class="wide"><table {about}><thead><tr>{"".join(heads)}</tr></thead>{bodies}</table></div>'
