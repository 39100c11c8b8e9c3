"""Fill the tables of docs/paper.md and docs/evidence.md from the records: `python benchmarks/paper_page.py`.

The paper's figures are in `paper_claims.yaml`, ours in results/. A table stands between `<!-- table: NAME -->` and
`<!-- end -->`. It shows the records that exist, and says where there are none.
"""

import functools
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ffcil.methods import find_method
from ffcil.report import RunRecord, load_runs
from ffcil.report.analyse.groups import group_runs
from ffcil.report.analyse.statistics import ENOUGH_PAIRS, Change
from ffcil.report.analyse.tables import ACCURACIES, METRICS, Metric
from ffcil.report.render.text import NOTHING, SYMBOLS, interval_text, signed

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
PAGES = (ROOT / "docs" / "paper.md", ROOT / "docs" / "evidence.md")
CLAIMS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("paper_claims.yaml").read_text(encoding="utf-8"))
NO_RECORDS = "no records yet"
BLOCK = re.compile(r"<!-- table: ([\w-]+) -->\n.*?<!-- end -->\n", re.DOTALL)
HEAD = {metric: symbol.replace("_", "\\_") for metric, symbol in SYMBOLS.items()}

Changes = dict[Metric, Change]


# --- the records --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """What runs share that differ only in their seeds."""

    method: str
    setting: str
    condition: str
    """Fields in which the runs differ from other runs of this method in the folder, in words; empty if in none."""


Runs = dict[Kind, dict[tuple[int, int, int], RunRecord]]


@functools.cache
def runs_of(folder: str) -> Runs:
    """Runs in a folder of results/ by kind and seeds; none if the folder is not there."""
    found: Runs = {}
    for group in group_runs(load_runs(RESULTS / folder)) if (RESULTS / folder).is_dir() else []:
        for run in group.runs:
            found.setdefault(Kind(run.method, run.setting, group.label), {})[run.seeds] = run
    return found


def accuracy(run: RunRecord, metric: Metric) -> float:
    """An accuracy of the classifier that scores the run, in percent."""
    assert run.scored is not None
    value = METRICS[metric](run.tables[run.scored])
    assert value is not None
    return value


def changes_of(folder: str, before: Kind, after: Kind) -> Changes | None:
    """Differences between two kinds of runs, one for each pair with the same seeds; None if there is no pair."""
    old, new = runs_of(folder).get(before, {}), runs_of(folder).get(after, {})
    pairs = [(old[seeds], new[seeds]) for seeds in sorted(new) if seeds in old]
    if not pairs:
        return None
    return {
        metric: Change(tuple(accuracy(b, metric) - accuracy(a, metric) for a, b in pairs), before.setting)
        for metric in ACCURACIES
    }


def effects_in(folder: str, before: str, after: str, method: str | None = None) -> Iterator[tuple[Kind, Changes]]:
    """Every method and condition of a folder that has pairs of the two settings."""
    for kind in runs_of(folder):
        changes = changes_of(folder, Kind(kind.method, before, kind.condition), kind)
        if kind.setting == after and method in (None, kind.method) and changes:
            yield kind, changes


def link(folder: str) -> str:
    return f"[{folder}](../results/README.md#{folder})"


def title(method: str) -> str:
    return find_method(method).title


# --- the verdict --------------------------------------------------------------------------------------------------

HOLDS, FAILS, LEANS_TO, LEANS_AGAINST, UNDECIDED = (
    "holds here",
    "does not hold here",
    "open, leans towards it",
    "open, leans against it",
    "open",
)
VERDICTS = (HOLDS, FAILS, LEANS_TO, LEANS_AGAINST, UNDECIDED, NO_RECORDS)


def verdict(claimed: float, change: Change | None) -> str:
    """What paired differences say about a claimed difference. docs/paper.md states this rule.

    Half of the paper's figure has to be excluded, not the whole, because a smaller network may show a smaller effect.
    """
    if change is None:
        return NO_RECORDS
    if change.interval is None:
        return UNDECIDED
    low, high = change.interval
    shown = low > 0 if claimed > 0 else high < 0
    excluded = high < claimed / 2 if claimed > 0 else low > claimed / 2
    enough = change.pairs >= ENOUGH_PAIRS
    if shown:
        return HOLDS if enough else LEANS_TO
    if excluded:
        return FAILS if enough else LEANS_AGAINST
    return UNDECIDED


# --- the effects that the paper claims ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """A claimed effect on one method and data set, beside ours in one folder of records."""

    data: str
    method: str
    claimed: dict[Metric, float]
    folder: str | None
    """None if there are no records."""
    changes: Changes
    condition: str = ""

    @property
    def pairs(self) -> int:
        return self.changes["last"].pairs if self.changes else 0

    def verdict(self, metric: Metric) -> str:
        return verdict(self.claimed[metric], self.changes.get(metric))


def lines_of(effect: dict[str, Any]) -> list[Line]:
    """All methods and data sets for which the paper has figures of both settings."""
    lines = []
    for data, methods in CLAIMS["figures"].items():
        for method, figures in methods.items():
            if effect["from"] not in figures or effect["to"] not in figures:
                continue
            both = zip(figures[effect["to"]], figures[effect["from"]], strict=True)
            claimed = dict(zip(ACCURACIES, (round(after - before, 2) for after, before in both), strict=True))
            found = [
                Line(data, method, claimed, folder, changes, kind.condition)
                for folder in CLAIMS["sources"][data]
                for kind, changes in effects_in(folder, effect["from"], effect["to"], method)
            ]
            lines += found or [Line(data, method, claimed, None, {})]
    return lines


def change_cell(change: Change | None) -> str:
    """Mean difference and its interval: `-1.85 (-21.16 to +17.47)`."""
    if change is None:
        return NOTHING
    return signed(change.value) + (f" ({interval_text(change.interval)})" if change.interval else "")


def effect_table(effect: dict[str, Any]) -> str:
    """The paper's differences beside ours, and the commands that make our side."""
    head = ["Data", "Method", f"paper: {HEAD['average']}", f"paper: {HEAD['last']}"]
    head += [f"ours: {HEAD['average']}", f"ours: {HEAD['last']}", "pairs", "our records", "verdict"]
    rows, commands = [], []
    for line in lines_of(effect):
        source = CLAIMS["sources"][line.data][line.folder or "paper"]
        verdicts = {metric: line.verdict(metric) for metric in effect["judged"]}
        same = len(set(verdicts.values())) == 1
        each = [word if same else f"{HEAD[metric]}: {word}" for metric, word in verdicts.items()]
        place = f"{link(line.folder)}: {source['set-up']}" if line.folder else NO_RECORDS
        condition = f" ({line.condition})" if line.condition else ""
        cells = [line.data, title(line.method) + condition, *(signed(line.claimed[m]) for m in ACCURACIES)]
        cells += [*(change_cell(line.changes.get(m)) for m in ACCURACIES), str(line.pairs), place]
        rows.append([*cells, "; ".join(dict.fromkeys(each)) if line.folder else "open: no records"])
        commands.append(f"ffcil study {effect['study']} {source['options']} --methods {line.method}")
    below = f"{effect['place']}, {effect['from']} → {effect['to']}. Differences in points; ours with 95 % t intervals."
    return "\n".join([markdown(head, rows), "", below, "", "```", *dict.fromkeys(commands), "```"])


def summary() -> str:
    """Numbers of figures by verdict, for each claimed effect; of several records, those with the most pairs count."""
    head = ["Claim", "in", "figures judged", *VERDICTS]
    rows = []
    for effect in CLAIMS["effects"].values():
        best: dict[tuple[str, str], Line] = {}
        for line in lines_of(effect):
            key = (line.data, line.method)
            best[key] = max(best.get(key, line), line, key=lambda one: one.pairs)
        words = Counter(line.verdict(metric) for line in best.values() for metric in effect["judged"])
        judged = ", ".join(HEAD[metric] for metric in effect["judged"])
        numbers = [str(words[word]) if words[word] else NOTHING for word in VERDICTS]
        rows.append([effect["claim"], effect["place"], f"{words.total()} ({judged})", *numbers])
    return markdown(head, rows)


# --- other tables -------------------------------------------------------------------------------------------------


def own_table(entries: Sequence[dict[str, str]]) -> str:
    """Effects of our own records that the paper has no figures for."""
    head = ["Our records", "Method", "from", "to", HEAD["average"], HEAD["last"], "pairs", "conclusion"]
    rows = []
    for entry in entries:
        folder, ends = entry["folder"], [entry["from"], entry["to"]]
        for kind, changes in effects_in(folder, *ends):
            condition = f" ({kind.condition})" if kind.condition else ""
            cells = [change_cell(changes[metric]) for metric in ACCURACIES]
            conclusion = "; ".join(f"{HEAD[m]} {changes[m].conclusion}" for m in ACCURACIES)
            rows.append([link(folder), title(kind.method) + condition, *ends, *cells, str(changes["last"].pairs)])
            rows[-1].append(conclusion)
    return markdown(head, rows) if rows else f"{NO_RECORDS.capitalize()}."


def levels() -> str:
    """Accuracies on CIFAR-100, where data and hyper-parameters are those that the paper names."""
    rows = []
    for folder, source in CLAIMS["sources"]["CIFAR-100"].items():
        for kind, runs in runs_of(folder).items():
            theirs = CLAIMS["figures"]["CIFAR-100"].get(kind.method, {}).get(kind.setting)
            if theirs is None:
                continue
            ours = [mean_cell([accuracy(run, metric) for run in runs.values()]) for metric in ACCURACIES]
            paper = " / ".join(f"{value:.2f}" for value in theirs)
            place = f"{link(folder)}: {source['set-up']}"
            rows.append([title(kind.method), kind.setting, paper, " / ".join(ours), str(len(runs)), place])
    return markdown(["Method", "Setting", "paper: Ā / A\\_T", "ours: Ā / A\\_T", "n", "our records"], rows)


def mean_cell(values: Sequence[float]) -> str:
    std = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{std}"


def tuna_and_mos() -> str:
    """TUNA minus MOS on Cars, in each setting."""
    rows = []
    for setting in ("Equ.T", "FF.org"):
        figures = [CLAIMS["figures"]["Cars"][method][setting] for method in ("mos", "tuna")]
        theirs = [signed(tuna - mos) for mos, tuna in zip(*figures, strict=True)]
        for folder in CLAIMS["sources"]["Cars"]:
            changes = changes_of(folder, Kind("mos", setting, ""), Kind("tuna", setting, ""))
            if changes:
                ours = [change_cell(changes[metric]) for metric in ACCURACIES]
                rows.append([setting, *theirs, *ours, str(changes["last"].pairs), link(folder)])
    names = [f"{side}: {HEAD[metric]}" for side in ("paper", "ours") for metric in ACCURACIES]
    return markdown(["TUNA minus MOS, Cars", *names, "pairs", "our records"], rows)


def norms() -> str:
    """Mean row norm of old over new classes before WA at every step of FF.org, and the number of new classes."""
    rows = []
    for kind, runs in runs_of("cifar100-icarl-free-flow").items():
        for run in runs.values() if kind.setting == "FF.org" else []:
            ratios = [f"{old / new:.2f}" for old, new in (record["row_norms"] for record in run.records[1:])]
            rows += [[run.seed_label, "new classes", *map(str, run.sizes[1:])], ["", "old / new", *ratios]]
    return markdown(["", "step", *(str(step) for step in range(2, 11))], rows)


def boundaries() -> str:
    """Ā of one and the same curve, that of Equ.T, read after the steps of other schedules."""
    runs = runs_of("cifar100-icarl-free-flow")
    (seeds, equal), *_ = runs[Kind("icarl", "Equ.T", "")].items()
    assert equal.scored is not None
    # One class alone is always right, and between two steps the curve is taken as straight.
    seen = [1, *np.cumsum(equal.sizes)]
    curve = [100.0, *(record["accuracy"][equal.scored] for record in equal.records)]
    jumbled = runs[Kind("icarl", "FF.org", "")][seeds].sizes
    orders = {
        "equal": equal.sizes,
        "free flow, jumbled": jumbled,
        "free flow, ascending": tuple(sorted(jumbled)),
        "free flow, descending": tuple(sorted(jumbled, reverse=True)),
    }
    read = {name: np.mean(np.interp(np.cumsum(sizes), seen, curve)) for name, sizes in orders.items()}
    rows = [[name, " ".join(map(str, orders[name])), f"{value:.2f}"] for name, value in read.items()]
    return markdown(["Steps", "sizes", f"{HEAD['average']} of the one curve"], rows)


def overhead() -> str:
    """Time of a training step under CWM over that under the mean, and of inference with HA over that without."""
    rows = []
    for path in sorted(RESULTS.glob("methods*.json")):
        document = json.loads(path.read_text(encoding="utf-8"))
        rows += [
            ["CWM, training step", title(row["method"]), f"{row['class_wise_mean']['ratio']:.3f}", file_link(path)]
            for row in document["methods"]
            if row["class_wise_mean"]
        ]
    path = RESULTS / "pretrained.json"
    ratio = json.loads(path.read_text(encoding="utf-8"))["inference"]["with_ha_over_without"]
    rows.append(["HA, inference", "adapters in a ViT-B/16", f"{ratio:.3f}", file_link(path)])
    return markdown(["Part", "of", "time with / without", "our record"], rows)


def file_link(path: Path) -> str:
    return f"[{path.name}](../results/{path.name})"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# --- the pages ----------------------------------------------------------------------------------------------------


def tables() -> dict[str, str]:
    """Every table by its name."""
    made = {name: effect_table(effect) for name, effect in CLAIMS["effects"].items()}
    made |= {name: own_table(entries) for name, entries in CLAIMS["own"].items()}
    made |= {"summary": summary(), "levels": levels(), "tuna-and-mos": tuna_and_mos()}
    return made | {"norms": norms(), "boundaries": boundaries(), "overhead": overhead()}


def filled(page: str) -> str:
    """The page with its tables made again."""
    made = tables()
    return BLOCK.sub(lambda found: f"<!-- table: {found[1]} -->\n{made[found[1]]}\n<!-- end -->\n", page)


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
