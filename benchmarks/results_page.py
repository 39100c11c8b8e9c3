"""Write results/README.md, and the table in README.md, from the raw records: `python benchmarks/results_page.py`."""

from __future__ import annotations

import json
from pathlib import Path

from ffcil.metrics import average_accuracy, forgetting, last_accuracy
from ffcil.report import RunRecord, load_run, load_runs

README = Path(__file__).resolve().parents[1] / "README.md"
RESULTS = README.parent / "results"
INTRODUCTION = """# Results

Made by `python benchmarks/results_page.py` from the records in this folder; do not edit. Each run's folder holds its
configuration, one line a step, the counts behind every figure, and the command, commit and hardware that made it.
Accuracy in percent: average over the steps, after the last step; F is forgetting.
"""


def alignment_done(run: RunRecord) -> str:
    """By the last record: `alignment: auto` in a configuration does not tell."""
    done = run.records[-1]["alignment"]
    return "none" if done is None else "wa" if done["eta"] == 1 else "diwa"


def run_rows(run: RunRecord) -> list[str]:
    environment, config = run.environment, run.config
    seeds = f"{config['class_seed']} / {config['arrival_seed']} / {config['train_seed']}"
    alone = "" if environment["alone_on_the_gpu"] else " (shared with another run)"
    assert run.summary is not None
    speed = f"{run.summary['images_per_second']:,.0f}{alone}"
    minutes = f"{environment['wall_clock_seconds'] / 60:.1f}"
    return [
        f"| [{run.folder.name}]({run.folder.relative_to(RESULTS)}) | {alignment_done(run)} | {seeds} | {classifier} "
        f"| {average_accuracy(table):.2f} | {last_accuracy(table):.2f} | {forgetting(table) or 0:.2f} "
        f"| {minutes} | {speed} | {environment['device']} | {environment['commit']} |"
        for classifier, table in run.tables.items()
    ]


def study(folder: Path) -> str:
    runs = load_runs(folder)
    head = ["run", "alignment", "seeds: class / arrival / train", "classifier", "average", "last", "F", "minutes"]
    head += ["images/s", "device", "commit"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [row for run in runs for row in run_rows(run)]
    commands = [f"{run.folder.name}: `{run.environment['command']}`" for run in runs]
    about = (folder / "ABOUT.md").read_text(encoding="utf-8").strip()
    return "\n".join([f"## {folder.name}", "", about, "", *lines, "", *[f"- {command}" for command in commands], ""])


def training_step(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    environment = document["environment"]
    lines = [
        "## iCaRL's training step (ResNet-32, batch 128, teacher and augmentation included)",
        "",
        f"{environment['device']}, torch {environment['torch']}, commit {environment['commit']}: "
        f"`{environment['command']}`. Best of {document['n']} epochs; start-up is the first epoch.",
        "",
        "| graph | compile | precision | reduction | images/s | against the first row | start-up, s |",
        "|---|---|---|---|---|---|---|",
    ]
    base = document["variants"][0]["images_per_second"]
    for row in document["variants"]:
        lines.append(
            f"| {'yes' if row['graph'] else 'no'} | {'yes' if row['compile'] else 'no'} | {row['precision']} "
            f"| {row.get('reduction', 'mean')} | {row['images_per_second']:,.0f} "
            f"| {row['images_per_second'] / base:.2f} | {row['first_epoch_seconds']:.1f} |"
        )
    return "\n".join([*lines, ""])


def page() -> str:
    parts = [INTRODUCTION, *(study(folder) for folder in sorted(RESULTS.iterdir()) if (folder / "ABOUT.md").exists())]
    if (RESULTS / "training-step.json").exists():
        parts.append(training_step(RESULTS / "training-step.json"))
    return "\n".join(parts)


def headline() -> str:
    """The first page's table: the run that was made as PyCIL makes it, beside the figures that PyCIL's users report."""
    run = load_run(RESULTS / "cifar100-icarl-equal" / "none-seed0")
    table = run.tables["nearest-mean"]
    assert run.summary is not None
    minutes, speed = run.environment["wall_clock_seconds"] / 60, run.summary["images_per_second"]
    return "\n".join(
        [
            "| nearest mean | average | last | wall clock | training images/s |",
            "|---|---|---|---|---|",
            "| published for PyCIL | 65.1 | 49.4 | | |",
            f"| ffcil, {run.environment['device']} | {average_accuracy(table):.2f} | {last_accuracy(table):.2f} "
            f"| {minutes:.1f} min | {speed:,.0f} |",
        ]
    )


def with_headline(readme: str) -> str:
    before, rest = readme.split("<!-- results -->\n")
    _, after = rest.split("<!-- end of results -->\n")
    return f"{before}<!-- results -->\n{headline()}\n<!-- end of results -->\n{after}"


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(page(), encoding="utf-8")
    README.write_text(with_headline(README.read_text(encoding="utf-8")), encoding="utf-8")
