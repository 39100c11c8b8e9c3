"""The folder of a report: the page, all tables and all figures."""

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ffcil.report.analyse.contents import Contents
from ffcil.report.analyse.groups import Group
from ffcil.report.render import figures, latex, matched, sensitivity, tables
from ffcil.report.render.page import TITLE, write_page

FIGURE_FORMATS = ("svg", "png")
LONGEST_NAME = 120
"""Number of characters of a figure's file name; file systems allow 255 bytes."""


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
        texts["table.md"] = tables.comparison_markdown(rows)
        texts["table.tex"] = latex.comparison_latex(rows)
        texts["table.csv"] = tables.comparison_csv(rows)
    if contents.changed:
        texts["evidence.md"] = tables.evidence_markdown(rows)
        texts["evidence.csv"] = tables.evidence_csv(rows)
    if ablations:
        texts["ablation.md"] = tables.ablation_markdown(ablations)
        texts["ablation.csv"] = tables.ablation_csv(ablations)
        texts["ablation.tex"] = latex.ablation_latex(ablations)
    if contents.matched:
        texts["matched.md"] = matched.matched_markdown(contents.matched)
        texts["matched.csv"] = matched.matched_csv(contents.matched)
        texts["matched.tex"] = latex.matched_latex(contents.matched)
        texts["matched.json"] = _json(matched.matched_json(contents.matched))
    if contents.sensitivities:
        texts["sensitivity.md"] = sensitivity.sensitivity_markdown(contents.sensitivities)
        texts["sensitivity.csv"] = sensitivity.sensitivity_csv(contents.sensitivities)
        texts["sensitivity.tex"] = latex.sensitivity_latex(contents.sensitivities)
        texts["sensitivity.json"] = _json(sensitivity.sensitivity_json(contents.sensitivities))
    for name, text in texts.items():
        (out / name).write_text(text, encoding="utf-8")
    return [out / name for name in texts]


def _json(values: Any) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _write_figures(contents: Contents, folder: Path) -> list[Path]:
    written: dict[str, list[Path]] = {}

    def write(name: str, plot: Callable[..., Path], values: Any) -> None:
        """Draw a figure under a valid file name, which is numbered if it is already used."""
        slug = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")[:LONGEST_NAME]
        numbered = (slug if k == 1 else f"{slug}-{k}" for k in itertools.count(1))
        free = next(name for name in numbered if name not in written)
        written[free] = [folder / f"{free}.{suffix}" for suffix in FIGURE_FORMATS]
        plot(values, *written[free])

    by_data: dict[str, list[Group]] = {}
    for group in contents.groups:
        by_data.setdefault(group.data_label, []).append(group)
        if group.is_main:
            write(f"forgetting-{group.name}", figures.plot_memory, group)
    for data, groups in by_data.items():
        write(f"curves-{data}", figures.plot_group_curves, groups)
        if uneven := [group for group in groups if group.is_uneven and group.is_main]:
            write(f"class-sizes-{data}", figures.plot_class_sizes, uneven)
    for name, plot, values in (
        ("drop-and-recovery", figures.plot_changes, contents.changed),
        ("alpha", figures.plot_sweeps, contents.alphas),
        ("order", figures.plot_sweeps, contents.orders),
        ("overhead", figures.plot_costs, contents.costs),
        ("sensitivity", figures.plot_sensitivities, contents.sensitivities),
    ):
        if values:
            write(name, plot, values)
    return [path for paths in written.values() for path in paths]
