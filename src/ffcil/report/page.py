"""The page: one HTML file that needs no network, with the comparison, interactive figures, and how to make it again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from ffcil.metrics import average_accuracy, last_accuracy
from ffcil.report.figures import (
    Spec,
    accuracy_range,
    class_size_spec,
    curves_spec,
    memory_spec,
    schedule_spec,
    seed_schedules,
)
from ffcil.report.records import CLASSIFIER_NAMES, RunRecord, classifiers_of, settings_of
from ffcil.report.tables import (
    METRICS,
    NOTHING,
    Change,
    Metric,
    Number,
    Row,
    arrow,
    compare,
    group_runs,
    legend,
    runs_text,
    settings_in,
    verdict,
)

TITLE = "Free-flow class-incremental learning"
SEEDS_SHOWN = 3  # further ones are folded away
MEANINGS = {
    "Equ.T": "the classes arrive in equal steps; the method is the original one.",
    "FF.org": "the same classes in as many steps, but in free flow: some steps bring one class, others many. "
    "The method is still the original one.",
    "FF.ours": "free flow, and the method has the paper's components: the class-wise mean objective (CWM) with "
    "dynamic intervention weight alignment (DIWA), or with head-agnostic alignment (HA) for pre-trained backbones.",
    "Equ.ours": "equal steps, and the method has the paper's components.",
}
SYMBOLS_HTML: dict[Metric, str] = {"average": "Ā", "last": "A<sub>T</sub>", "forgetting": "F"}

STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --muted: #5b6470; --paper: #fff; --panel: #f5f6f8; --line: #d9dde3;
  --better: #1a7f37; --worse: #c62828; --link: #0b61c4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --muted: #9aa4b0; --paper: #14171c; --panel: #1d2229;
  --line: #343b45; --better: #4ec46f; --worse: #ff7b72; --link: #79b8ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1.5rem 1.1rem 4rem; }
h1 { font-size: clamp(1.5rem, 4.5vw, 2.2rem); line-height: 1.2; margin: 0.5rem 0; letter-spacing: -0.01em; }
h2 { font-size: 1.35rem; margin: 2.8rem 0 0.6rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.02rem; margin: 1.8rem 0 0.2rem; }
h4 { font-size: 0.9rem; margin: 0.8rem 0 0; font-weight: 600; }
p, ul, dl { max-width: 46rem; margin: 0.5rem 0; }
ul { padding-left: 1.2rem; }
dt { font-weight: 600; float: left; clear: left; min-width: 5.8rem; } dd { margin: 0 0 0.35rem 5.8rem; }
.lead { font-size: 1.08rem; color: var(--muted); }
.small, figcaption { font-size: 0.86rem; margin-top: 0.5rem; color: var(--muted); max-width: 46rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.comparison { width: 100%; max-width: 46rem; }
th, td { padding: 0.3rem 0 0.3rem 0.7rem; text-align: left; vertical-align: baseline; }
th:first-child, td:first-child { padding-left: 0; }
thead th { border-bottom: 2px solid var(--line); }
.comparison td, .comparison thead th + th { text-align: right; }
.comparison .method th { padding-top: 0.9rem; font-weight: 650; }
.comparison .method span { font-weight: 400; color: var(--muted); font-size: 0.86rem; margin-left: 0.4rem; }
.comparison .metric th { font-weight: 400; color: var(--muted); white-space: nowrap; width: 3rem; }
.comparison .metric > * { border-top: 1px solid var(--line); }
.comparison b { font-size: 1.08rem; font-weight: 600; } .comparison td small { display: block; white-space: nowrap; }
td small { color: var(--muted); } .better { color: var(--better); } .worse { color: var(--worse); }
.runs { font-size: 0.86rem; width: 100%; max-width: 46rem; } .runs td { border-top: 1px solid var(--line); }
.runs .group th { padding-top: 1rem; font-size: 1rem; } .runs .more td { border-top: 0; padding-top: 0; }
nav a { color: var(--link); display: inline-block; margin-right: 1rem; }
figure { margin: 0.6rem 0; min-width: 0; }
.grid { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); gap: 0.4rem 1.2rem; }
.grid.two { grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
.plot { width: 100%; }
details { margin: 0.4rem 0; } summary { cursor: pointer; color: var(--link); }
pre { background: var(--panel); padding: 0.7rem 0.9rem; border-radius: 6px; overflow-x: auto; font-size: 0.82rem;
  margin: 0.4rem 0; max-width: calc(min(70rem, 100vw) - 3.5rem); white-space: pre-wrap; overflow-wrap: anywhere; }
"""

# Figures are drawn when they can be seen (those in a closed <details> have no width), in the colours of the page.
SCRIPT = """
(() => {
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)").matches;
  const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const themed = layout => {
    const [ink, line, panel] = [style("--ink"), style("--line"), style("--panel")];
    const axis = given => ({automargin: true, ...given, title: {standoff: 8, ...given.title},
      gridcolor: line, zerolinecolor: line, linecolor: line});
    return {...layout, dragmode: touch ? false : "zoom", xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
      font: {color: ink, size: 12, family: getComputedStyle(document.body).fontFamily},
      hoverlabel: {bgcolor: panel, bordercolor: line, font: {color: ink}, align: "left"}};
  };
  const draw = plot => {
    if (!plot.offsetParent) return;
    const spec = JSON.parse(plot.nextElementSibling.textContent);
    Plotly.react(plot, spec.data, themed(spec.layout), {responsive: true, displayModeBar: false});
  };
  const drawAll = () => document.querySelectorAll(".plot").forEach(draw);
  drawAll();
  scheme.addEventListener("change", drawAll);
  document.addEventListener("toggle", event => event.target.querySelectorAll(".plot").forEach(draw), true);
})();
"""


def write_page(runs: Sequence[RunRecord], path: Path | str, title: str = TITLE) -> Path:
    """Write the report of these runs as one HTML file that needs nothing else.

    Unfinished runs are listed, and left out of every result.
    """
    from plotly.offline import get_plotlyjs

    path = Path(path)
    rows = compare(runs)
    groups = group_runs([run for run in runs if run.finished])
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{_what_was_run(runs)}</p>',
        _headlines(rows),
        _meanings(runs),
        _comparison(rows),
        _contents(groups),
        *(f'<section id="group-{i}">{_group(group)}</section>' for i, group in enumerate(groups)),
        _runs_table(runs),
    ]
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n<noscript><p>The figures need JavaScript, which is turned off; the tables do not.</p></noscript>"
        + f"\n</main>\n<script>{get_plotlyjs()}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _what_was_run(runs: Sequence[RunRecord]) -> str:
    finished = [run for run in runs if run.finished]
    parts = []
    for group in group_runs(finished):
        settings = ", ".join(settings_of(group))
        seeds = len({run.seeds for run in group})
        parts.append(f"{_group_name(group)}: {settings}; {_count(seeds, 'seed')}.")
    unfinished = len(runs) - len(finished)
    left_out = f", {unfinished} unfinished and left out of every result" if unfinished else ""
    return "<br>".join(escape(part) for part in [*parts, f"{_count(len(finished), 'finished run')}{left_out}."])


def _contents(groups: list[list[RunRecord]]) -> str:
    """Links to the figures of each method and dataset, where there are several."""
    if len(groups) < 2:
        return ""
    links = "".join(f'<a href="#group-{i}">{escape(_group_name(group))}</a>' for i, group in enumerate(groups))
    return f'<nav class="small">Figures: {links} <a href="#runs">Runs</a></nav>'


def _headlines(rows: Sequence[Row]) -> str:
    """One sentence a scored row: what free flow did, and what the components did."""

    def did(what: str, average: Change | None, last: Change | None) -> str:
        if average is None or last is None:
            return ""
        first, second = ("lowers" if change.value < 0 else "raises" for change in (average, last))
        return (
            f"{what} {first} average accuracy Ā by <b>{abs(average.value):.2f}</b> and "
            f"{second + ' ' if second != first else ''}final accuracy A<sub>T</sub> by <b>{abs(last.value):.2f}</b> "
            f"({_count(average.pairs, 'pair')} of runs)"
        )

    items = []
    for row in rows:
        free_flow = did("free flow in place of equal steps", row.drop("average"), row.drop("last"))
        ours = did("under free flow, adding the paper’s components", row.recovery("average"), row.recovery("last"))
        said = [sentence for sentence in (free_flow, ours) if sentence]
        if row.scored and said:
            items.append(f"<li>{escape(f'{row.label} on {row.data_label}')}: {'; '.join(said)}.</li>")
    return f"<ul>{''.join(items)}</ul>" if items else ""


def _meanings(runs: Sequence[RunRecord]) -> str:
    items = [f"<dt>{s}</dt><dd>{escape(MEANINGS[s])}</dd>" for s in settings_of(runs) if s in MEANINGS]
    return f"<dl>{''.join(items)}</dl>" if items else ""


def _comparison(rows: Sequence[Row]) -> str:
    if not rows:
        return "<h2>Comparison</h2><p>No run is finished yet.</p>"
    settings = settings_in(rows)
    head = "".join(f"<th>{escape(setting)}</th>" for setting in settings)
    lines = []
    for row in rows:
        scored = "" if row.scored else ", recorded beside the scored classifier"
        title = f"{escape(row.label)}<span>{escape(row.data_label)}{scored}</span>"
        lines.append(f'<tr class="method"><th colspan="{len(settings) + 1}">{title}</th></tr>')
        for metric in METRICS:
            cells = "".join(f"<td>{_number(metric, row.number(s, metric))}</td>" for s in settings)
            lines.append(f'<tr class="metric"><th>{SYMBOLS_HTML[metric]}</th>{cells}</tr>')
        counts = "".join(f"<td><small>{runs_text(row.cells.get(s))}</small></td>" for s in settings)
        lines.append(f'<tr class="metric"><th>n</th>{counts}</tr>')
    notes = "".join(f'<p class="small">{line}</p>' for line in escape(legend(rows)).split("\n"))
    return (
        f'<h2>Comparison</h2><div class="wide"><table class="comparison"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>{notes.replace('A_T', 'A<sub>T</sub>')}"
    )


def _number(metric: Metric, number: Number | None) -> str:
    if number is None:
        return NOTHING
    small = [f"±{number.std:.2f}"] if number.std is not None else []
    if number.change is not None:
        versus = escape(f"against {number.change.versus}, {_count(number.change.pairs, 'pair')}")
        kind = verdict(metric, number.change.value)
        small.append(f'<span class="{kind}" title="{versus}">{arrow(number.change.value)}</span>')
    return f"<b>{number.mean:.2f}</b>" + (f"<small>{' '.join(small)}</small>" if small else "")


def _group(runs: list[RunRecord]) -> str:
    """The figures of one method on one dataset."""
    classifiers = classifiers_of(runs)
    scored = classifiers[0]
    name = escape(_classifier(scored))
    floor, _ = accuracy_range(runs)
    curves = "".join(
        f"<div><h4>{escape(_classifier(c))}{' (scored)' if c == scored else ''}</h4>{_plot(curves_spec(runs, c))}</div>"
        for c in classifiers
    )
    schedules = [
        f"<div><h4>{escape(seed)}</h4>{_plot(schedule_spec(of_seed))}</div>"
        for seed, of_seed in seed_schedules(runs).items()
    ]
    maps = {}
    for seeds in _seeds_by_completeness([run for run in runs if scored in run.tables]):
        of_seed = [run for run in runs if run.seeds == seeds and scored in run.tables]
        maps[of_seed[0].seed_label] = "".join(
            f"<div><h4>{escape(run.setting)}, {run.seed_label}</h4>{_plot(memory_spec(run, scored))}</div>"
            for run in sorted(of_seed, key=lambda r: settings_of(runs).index(r.setting))
        )
    first, *others = [f'<div class="grid">{of_seed}</div>' for of_seed in maps.values()]
    return f"""<h2>{escape(_group_name(runs))}</h2>
<h3>Accuracy against classes seen</h3>
<figure><div class="grid two">{curves}</div>
<figcaption>Accuracy over the test images of all classes seen so far. Thick lines are means over runs, thin lines single
runs; where runs stop at different numbers of classes, the mean takes each as a straight line between its steps.
{f"The vertical axis starts at {floor:g}, not at 0." if floor else ""}
</figcaption></figure>
<h3>Schedules</h3>
<figure><div class="grid">{"".join(schedules[:SEEDS_SHOWN])}</div>
{
        _fold("The schedules of the other seeds", f'<div class="grid">{"".join(schedules[SEEDS_SHOWN:])}</div>')
        if schedules[SEEDS_SHOWN:]
        else ""
    }
<figcaption>New classes at every step. Runs of a seed that share a schedule are drawn once.</figcaption></figure>
<h3>What is remembered, step by step</h3>
<figure>{first}
{_fold("The other seeds", "".join(others)) if others else ""}
<figcaption>Accuracy ({name}) after each step on the classes of each step so far. A column that darkens
downwards is a step whose classes are being forgotten.</figcaption></figure>
<h3>Accuracy of a class by the size of its step</h3>
<figure>{_plot(class_size_spec(runs, scored))}
<figcaption>Accuracy ({name}) on each class after the last step, all runs together: small dots are classes, large
ones the mean over the classes that arrived in steps of that size. How long ago a class arrived is not held fixed here;
point at a dot to see its step.</figcaption></figure>"""


def _seeds_by_completeness(runs: list[RunRecord]) -> list[tuple[int, int, int]]:
    """Seeds, those that have the most settings first: they show the settings side by side."""
    present = [run.seeds for run in runs]
    return sorted(set(present), key=lambda seeds: (-present.count(seeds), seeds))


def _runs_table(runs: Sequence[RunRecord]) -> str:
    names = ("Setting", "Seeds", "Ā", "A<sub>T</sub>", "Steps", "Time")
    lines = []
    for group in group_runs(runs):
        lines.append(f'<tr class="group"><th colspan="{len(names)}">{escape(_group_name(group))}</th></tr>')
        for run in group:
            lines.append(f"<tr>{''.join(f'<td>{escape(field)}</td>' for field in _run_fields(run))}</tr>")
            where = f"{run.folder.name}, on {run.environment.get('device', 'an unknown device')}"
            lines.append(f'<tr class="more"><td colspan="{len(names)}">{_fold(where, _how(run))}</td></tr>')
    head = "".join(f"<th>{name}</th>" for name in names)
    return (
        '<h2 id="runs">Runs</h2><p class="small">Below each run its folder and device: they open the command to make '
        "the run again, its configuration and environment. Accuracies are of the scored classifier. Three seeds are "
        "those of the class order, the arrivals and the training; one stands for all three where they are the same.</p>"
        f'<div class="wide"><table class="runs"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _run_fields(run: RunRecord) -> list[str]:
    table = run.tables.get(run.scored or "")
    results = [NOTHING, NOTHING]
    if run.finished and table is not None:
        results = [f"{average_accuracy(table):.2f}", f"{last_accuracy(table):.2f}"]
    seeds = run.seed_label.split(" ")[1]
    steps = f"{len(run.sizes)}" if run.finished else f"{len(run.records)} of {len(run.sizes)}, unfinished"
    return [run.setting, seeds, *results, steps, _duration(run)]


def _how(run: RunRecord) -> str:
    command = run.environment.get("command")
    if isinstance(command, list):
        command = shlex.join(str(word) for word in command)
    parts = [("Command", str(command))] if command else []
    if run.records:
        parts.append(("Cost, step by step", _cost(run)))
    parts += [("Configuration", _json(run.config)), ("Schedule", " ".join(str(size) for size in run.sizes))]
    rest = {name: value for name, value in run.environment.items() if name != "command"}
    if rest:
        parts.append(("Environment", _json(rest)))
    return "".join(f"<h4>{name}</h4><pre>{escape(text)}</pre>" for name, text in parts)


COSTS = (
    ("step", "step", "{}"),
    ("parameters", "parameters", "{:,}"),
    ("trained", "trained_parameters", "{:,}"),
    ("exemplars", "memory", "{:,}"),
    ("images/s", "images_per_second", "{:,.0f}"),
    ("peak GPU bytes", "peak_memory_bytes", "{:,}"),
)
"""title, field of a record, how it is written"""


def _cost(run: RunRecord) -> str:
    """What every step needs, in columns of text; what the records say nothing of is left out."""
    told = [cost for cost in COSTS if all(record.get(cost[1]) is not None for record in run.records)]
    lines = [[title for title, _, _ in told]]
    lines += [[written.format(record[field]) for _, field, written in told] for record in run.records]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _plot(spec: Spec) -> str:
    """A figure's place and, beside it, its specification; `<` is written so that no text can close the element."""
    text = json.dumps(spec, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    place = f'<div class="plot" style="min-height:{int(spec["layout"]["height"])}px"></div>'
    return f'{place}<script type="application/json">{text}</script>'


def _fold(summary: str, inside: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inside}</details>"


def _group_name(runs: list[RunRecord]) -> str:
    run = runs[0]
    return f"{run.method_name} on {run.dataset}, {sum(run.sizes)} classes in {_count(len(run.sizes), 'step')}"


def _classifier(name: str) -> str:
    return CLASSIFIER_NAMES.get(name, name)


def _duration(run: RunRecord) -> str:
    """With spaces at which a line does not break."""
    seconds = float((run.summary or {}).get("seconds") or sum(sum(r.get("seconds", {}).values()) for r in run.records))
    if seconds < 60:
        return f"{seconds:.1f}\N{NO-BREAK SPACE}s"
    minutes = round(seconds / 60)
    text = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
