"""The folder of a report: the page, all tables and all figures."""

import itertools
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ffcil.report.analyse.contents import Contents
from ffcil.report.analyse.groups import Group
from ffcil.report.render.figures import (
    plot_changes,
    plot_class_sizes,
    plot_costs,
    plot_group_curves,
    plot_memory,
    plot_sweeps,
)
from ffcil.report.render.latex import ablation_latex, comparison_latex
from ffcil.report.render.page import TITLE, write_page
from ffcil.report.render.tables import (
    ablation_csv,
    ablation_markdown,
    comparison_csv,
    comparison_markdown,
    evidence_csv,
    evidence_markdown,
)

FIGURE_FORMATS = ("svg", "png")


def write_report(contents: Contents, out: Path | str, title: str = TITLE, command: str | None = None) -> list[Path]:
    """Write the page, tables and figures into a folder. `contents.left_out` names those that are not written."""
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    page = write_page(contents, out / "report.html", title, command)
    return [page, *_write_tables(contents, out), *_write_figures(contents, out / "figures")]


def _write_tables(contents: Contents, out: Path) -> list[Path]:
    rows, ablations = contents.rows, contents.ablations
    texts: dict[str, str] = {}
    if rows:
        texts |= {"table.md": comparison_markdown(rows), "table.tex": comparison_latex(rows)}
        texts["table.csv"] = comparison_csv(rows)
    if contents.changed:
        texts |= {"evidence.md": evidence_markdown(rows), "evidence.csv": evidence_csv(rows)}
    if ablations:
        texts |= {"ablation.md": ablation_markdown(ablations), "ablation.csv": ablation_csv(ablations)}
        texts["ablation.tex"] = ablation_latex(ablations)
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return [out / name for name in texts]


def _write_figures(contents: Contents, folder: Path) -> list[Path]:
    drawn: dict[str, Callable[..., Path]] = {}

    def add(name: str, draw: Callable[..., Path]) -> None:
        """Add a figure under a valid file name, which is numbered if it is already used."""
        slug = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")
        free = (slug if k == 1 else f"{slug}-{k}" for k in itertools.count(1))
        drawn[next(name for name in free if name not in drawn)] = draw

    by_data: dict[str, list[Group]] = {}
    for group in contents.groups:
        by_data.setdefault(group.data_label, []).append(group)
        if group.is_main:
            add(f"forgetting-{group.name}", partial(plot_memory, group))
    for data, groups in by_data.items():
        add(f"curves-{data}", partial(plot_group_curves, groups))
        uneven = [group for group in groups if group.is_uneven and group.is_main]
        if uneven:
            add(f"class-sizes-{data}", partial(plot_class_sizes, uneven))
    if contents.changed:
        add("drop-and-recovery", partial(plot_changes, contents.changed))
    for name, sweeps in (("alpha", contents.alphas), ("order", contents.orders)):
        if sweeps:
            add(name, partial(plot_sweeps, sweeps))
    if contents.costs:
        add("overhead", partial(plot_costs, contents.costs))
    written = []
    for name, draw in drawn.items():
        paths = [folder / f"{name}.{suffix}" for suffix in FIGURE_FORMATS]
        draw(*paths)
        written += paths
    return written
