"""Write results/README.md and the tables in README.md from the result files: `python benchmarks/results_page.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ffcil.methods import find_method
from ffcil.metrics import average_accuracy, forgetting, last_accuracy
from ffcil.report import RunRecord, compare, load_run, load_runs
from ffcil.report.analyse.sensitivity import sensitivities
from ffcil.report.render.sensitivity import sensitivity_markdown
from ffcil.report.render.tables import comparison_markdown
from ffcil.runs.published import SUFFIX
from ffcil.studies.executors.mps import portion

README = Path(__file__).resolve().parents[1] / "README.md"
RESULTS = README.parent / "results"
MOST_COMMANDS = 8
"""Largest number of commands that are listed for a study; a larger study gets a table of its settings."""
INTRODUCTION = """# Results

Made by `python benchmarks/results_page.py` from the files in this folder; do not edit. The file of each run holds its
configuration, one record per step, the counts behind every figure, and its command, commit and hardware.
Accuracy in percent: average over the steps, after the last step; F is forgetting.
"""


def alignment_done(run: RunRecord) -> str:
    """Alignment of the run; none if it had no second step."""
    aligned = any(record["alignment"] for record in run.records)
    return str(run.method_facts["framework"]["alignment"]) if aligned else "none"


def norm_ratios(run: RunRecord) -> str:
    """Mean row norm of the old classes divided by that of the new ones, before alignment, for each step."""
    norms = [record.get("row_norms") for record in run.records]
    return " ".join(f"{old / new:.2f}" for old, new in filter(None, norms))


def run_rows(run: RunRecord) -> list[str]:
    environment, config = run.environment, run.config
    seeds = f"{config['class_seed']} / {config['arrival_seed']} / {config['train_seed']}"
    alone = " (shared with another run)" if environment["alone_on_the_gpu"] is False else ""
    assert run.summary is not None
    speed = f"{run.summary['images_per_second']:,.0f}{alone}"
    wall_clock = environment["wall_clock_seconds"]
    minutes = "" if wall_clock is None else f"{wall_clock / 60:.1f}"
    return [
        f"| [{run.folder.name}]({run.folder.relative_to(RESULTS)}{SUFFIX}) | {run.setting} "
        f"| {run.method_facts['framework']['reduction']} "
        f"| {alignment_done(run)} | {seeds} | {classifier} "
        f"| {average_accuracy(table):.2f} | {last_accuracy(table):.2f} | {forgetting(table) or 0:.2f} "
        f"| {minutes} | {speed} | {environment['device']} | {environment['commit']} |"
        for classifier, table in run.tables.items()
    ]


def study(folder: Path) -> str:
    runs = load_runs(folder)
    head = [
        "run",
        "setting",
        "reduction",
        "alignment",
        "seeds: class / arrival / train",
        "classifier",
        "average",
        "last",
        "F",
        "minutes",
    ]
    head += ["images/s", "device", "commit"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [row for run in runs for row in run_rows(run)]
    commands = [f"{run.folder.name}: `{run.environment['command']}`" for run in runs[:MOST_COMMANDS]]
    if len(runs) > MOST_COMMANDS:
        commands.append("The commands of the other runs are in their files.")
    if any(norm_ratios(run) for run in runs):
        commands.append("Old over new row norms, before alignment, from the second step on:")
        commands += [f"{run.folder.name}: {norm_ratios(run)}" for run in runs if norm_ratios(run)]
    about = (folder / "ABOUT.md").read_text(encoding="utf-8").strip()
    tables = [] if len(runs) <= MOST_COMMANDS else [comparison_markdown(compare(runs))]
    tables += [sensitivity_markdown(found)] if (found := sensitivities(runs)) else []
    parts = [f"## {folder.name}", "", about, "", *tables, *lines, "", *[f"- {command}" for command in commands], ""]
    return "\n".join(parts)


def training_step(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    environment = document["environment"]
    lines = [
        "## iCaRL's training step (ResNet-32, batch 128, teacher and augmentation included)",
        "",
        f"{made_by(environment)}. Best of {document['n']} epochs; start-up is the first epoch.",
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


def methods(paths: Sequence[Path]) -> str:
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    lines = [
        "## Training step of each method as the stream goes on, and the cost of the class-wise mean and of flow",
        "",
        "A ratio is the time of a training step under the class-wise mean, or with the count-aware loss of flow, over "
        "that under the mean, the best of several turns each, at step 5. Up to commit 8de1d47 each turn built a "
        "learner of its own, since then one learner takes all turns.",
        "",
        *(f"- {made_by(document['environment'])}" for document in documents),
        "",
        "| method | backbone | step | images/s | ms a step | parameters | peak memory, MiB | class-wise mean / mean "
        "| flow / mean | commit |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for commit, row in ((d["environment"]["commit"], row) for d in documents for row in d["methods"]):
        ratio = row["class_wise_mean"]
        for k, step in enumerate(row["steps"]):
            peak = step["peak_memory_bytes"]
            cells = [
                *((row["method"], row["backbone"]) if k == 0 else ("", "")),
                f"{step['step']} | {step['images_per_second']:,.0f} | {step['milliseconds']:.2f}",
                f"{step['parameters']:,} | {peak / 2**20:,.0f}" if peak else f"{step['parameters']:,} | ",
                f"{ratio['ratio']:.3f}" if ratio and k == 0 else "",
                f"{ratio['flow_ratio']:.3f}" if ratio and k == 0 and "flow_ratio" in ratio else "",
                commit,
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def pretrained(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    inference, kept = document["inference"], document["kept_features"]
    base = document["training"][0]["images_per_second"]
    lines = [
        "## Methods on a ViT-B/16: training, inference, kept features, HA",
        "",
        f"{made_by(document['environment'])}. Random weights, 224 x 224 pixels; the first row is the references' way.",
        "",
        "| training of adapters, batch | how | images/s | against the first row | peak memory, MiB |",
        "|---|---|---|---|---|",
    ]
    for row in document["training"]:
        how = "eager, float32" if row["eager"] else "compiled, captured, bfloat16"
        speed, memory = row["images_per_second"], row["peak_memory_bytes"] / 2**20
        lines.append(f"| {row['batch']} | {how} | {speed:,.0f} | {speed / base:.2f} | {memory:,.0f} |")
    return "\n".join(
        [
            *lines,
            "",
            f"- Inference through adapters: {inference['images_per_second']:,.0f} images/s; with HA it takes "
            f"{inference['with_ha_over_without']:.3f} times as long as without.",
            f"- Evaluation of MOS at step {kept['steps']} with features kept from the steps before, against all "
            f"adapters on all images: {kept['ratio']:.1f} times as fast.",
            "",
        ]
    )


def data(loading: Sequence[Path], preparing: Sequence[Path]) -> str:
    lines = ["## Images: from the store against a DataLoader, and preparing a store", ""]
    for path in loading:
        document = json.loads(path.read_text(encoding="utf-8"))
        speeds, turns = document["images_per_second"], document["turns"]
        lines.append(
            f"- {made_by(document['environment'])}: {speeds['store']:,.0f} images/s at 224 x 224, cut at random sizes, "
            f"against {speeds['data_loader']:,.0f} through torchvision and a DataLoader: {speeds['ratio']:.1f} times "
            f"as fast (medians of {len(turns['store'])} turns each, in one process)."
            + (f" From the host's pinned memory {speeds['store_on_host']:,.0f}." if "store_on_host" in speeds else "")
        )
    for path in preparing:
        document = json.loads(path.read_text(encoding="utf-8"))
        lines.append(
            f"- {made_by(document['environment'])}: {document['peak_gib']:.2f} GiB of memory at the most, "
            f"{document['images_per_second']:,.0f} images/s on {document['cores']} cores."
        )
    return "\n".join([*lines, ""])


def packing(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    runs, alone, at_once = document["runs"], document["alone_seconds"], document["at_once_seconds"]
    speeds = [document[f"{how}_images_per_second"] for how in ("alone", "at_once")]
    return "\n".join(
        [
            "## Runs of a study that share a GPU",
            "",
            f"- {made_by(document['environment'])}: {runs} runs at once took {at_once:.0f} s, one alone {alone:.0f} s: "
            f"{document['ratio']:.2f} times as fast as one after another, start-up and evaluation included. Training "
            f"alone: {speeds[1]:,.0f} images/s together, {speeds[0]:,.0f} for the one: "
            f"{document['training_ratio']:.2f} times. Compiling and capturing each step is in all of these, and weighs "
            "more on the one alone. These runs had the whole GPU each (100 percent in the table above).",
            "",
        ]
    )


def beside_pycil(paths: Sequence[Path]) -> str:
    lines = ["## The same stream in PyCIL and in ffcil", ""]
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        environment = document["environment"]
        facts = {**environment.get("machine", {}), **environment, **document}
        lines.append(f"- {made_by(environment)}, {facts['cores']} cores, PyCIL {facts['pycil_commit']}:")
        for side in ("pycil", "ffcil"):
            steps = [
                f"step {k}: {step['images'] / step['seconds']:,.0f} images/s, "
                + ", ".join(f"{name} {value:.1f} %" for name, value in step["accuracy"].items())
                for k, step in enumerate(document[side]["steps"], 1)
            ]
            steps += [f"`{document[side]['error']}`"] if "error" in document[side] else []
            lines.append(f"    - {'PyCIL' if side == 'pycil' else side}: {'; '.join(steps)}")
    return "\n".join([*lines, ""])


def sharing(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    alone = next(row["images_per_second"] for row in document["rows"] if row["runs"] == 1)
    lines = [
        "## Trainings that share a GPU, once they are under way",
        "",
        f"{made_by(document['environment'])}. All but the one alone under MPS.",
        "",
        "| trainings at once | percent of the multiprocessors each | images/s together | against one alone |",
        "|---|---|---|---|",
    ]
    for row in document["rows"]:
        speed = row["images_per_second"]
        in_a_study = " (as in a study)" if row["runs"] > 1 and row["percent"] == portion(row["runs"]) else ""
        lines.append(f"| {row['runs']} | {row['percent']}{in_a_study} | {speed:,.0f} | {speed / alone:.2f} |")
    return "\n".join([*lines, ""])


def fortnight(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    names = [name for name, value in document["days"][0].items() if isinstance(value, dict)]
    lines = [
        "## A fortnight in the life of a classifier",
        "",
        f"{made_by(document['environment'])}. Accuracy in percent after each day, and the seconds of the day.",
        "",
        f"| day | classes | images (of known classes) | corrected | {' | '.join(names)} |",
        f"|---|---|---|---|{'---|' * len(names)}",
    ]
    for day in document["days"]:
        dropped = ", one dropped" if day["dropped"] else ""
        figures = " | ".join(f"{day[name]['accuracy']:.1f} ({day[name]['seconds']:.1f} s)" for name in names)
        lines.append(
            f"| {day['day']} | {day['classes']}{dropped} | {day['images']} ({day['of_known_classes']}) "
            f"| {day['corrected']} | {figures} |"
        )
    return "\n".join([*lines, ""])


def calibration(paths: Sequence[Path]) -> str:
    lines = ["## AnyArrival: calibration and unknown classes", ""]
    for path in paths:
        document = json.loads(path.read_text(encoding="utf-8"))
        whole, other = document["all_classes"], document.get("all_classes_against_something_else")
        about = f"{made_by(document['environment'])}. All classes: accuracy {whole['accuracy']:.1f} %, expected "
        about += f"calibration error {whole['expected_calibration_error']:.2f} % on {whole['images']:,} test images. "
        if other:
            about += f"Pictures of something else altogether: AUROC {other['novelty']['auroc']:.1f}, and "
            about += f"{other['highest_probability']['auroc']:.1f} by the highest probability. "
        lines += [
            f"{about}Half of the classes unknown:",
            "",
            "| seed of the half | AUROC | by the highest probability | called unknown at 5 %: known, unknown images |",
            "|---|---|---|---|",
        ]
        for row in document["halves"]:
            novelty, plain = row["novelty"], row["highest_probability"]
            at = novelty["called_unknown_at_5%"]
            shares = f"{at['known']:.1f} %, {at['unknown']:.1f} %"
            lines.append(f"| {row['seed']} | {novelty['auroc']:.1f} | {plain['auroc']:.1f} | {shares} |")
        lines.append("")
    return "\n".join(lines)


def serving(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    usual, learning, memory = (document[key] for key in ("milliseconds", "milliseconds_while_learning", "memory_mib"))
    return "\n".join(
        [
            "## Serving a classifier",
            "",
            f"- {made_by(document['environment'])}: {document['clients']} clients for {document['seconds']:.0f} s on a "
            f"machine with load {document['load_average'][0]}: {document['requests']:,} requests, {document['failed']} "
            f"failed; p50 {usual['p50']:.0f} ms, p99 {usual['p99']:.0f} ms, and {learning['p99']:.0f} ms while a step "
            f"was learned. Memory {memory['first_quarter']:.0f} MiB in the first quarter, "
            f"{memory['last_quarter']:.0f} MiB in the last.",
            "",
        ]
    )


def classifier_speed(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    lines = [
        "## A classifier beside plain timm",
        "",
        f"{made_by(document['environment'])}. Medians of {document['rounds']} rounds, batches of {document['batch']}, "
        f"{document['threads']} threads. Ratios are of the classifier to timm, with the lowest and the highest one.",
        "",
        "| network | one photo: classifier, timm | ratio | photos per second: classifier, timm | ratio |",
        "|---|---|---|---|---|",
    ]
    for network, row in document["networks"].items():
        one, rate = row["milliseconds_of_one_photo"], row["photos_per_second"]
        ratios = [
            f"{value['median']:.2f} ({value['lowest']:.2f} to {value['highest']:.2f})"
            for value in (row["one_photo_ratio"], row["throughput_ratio"])
        ]
        lines.append(
            f"| `{network}` | {one['classifier']:.1f} ms, {one['timm']:.1f} ms | {ratios[0]} | "
            f"{rate['classifier']:.1f}, {rate['timm']:.1f} | {ratios[1]} |"
        )
    lines += ["", "Seconds of changes, with 20 images of each known class:", ""]
    steps = document["seconds_of_changes"]
    names = list(next(iter(steps.values())))
    lines += [f"| known before | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {known} | {' | '.join(f'{row[name]:.2f}' for name in names)} |" for known, row in steps.items()]
    return "\n".join([*lines, ""])


def many_arrivals(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    steps = document["steps"]
    return "\n".join(
        [
            "## AnyArrival: many classes in many arrivals",
            "",
            f"- {made_by(document['environment'])}: {document['images']:,} made-up images of {document['features']} "
            f"features, {steps[-1]['classes']:,} classes in {len(steps):,} arrivals. The slowest step took "
            f"{document['slowest_step_seconds']:.1f} s, all of them {document['all_seconds']:.0f} s; peak memory "
            f"{steps[-1]['peak_megabytes']:,.0f} MB, of which {document['kept_megabytes']:,.0f} MB are kept features.",
            "",
        ]
    )


def stored_features(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    many = document["many"]
    lines = [
        "## Stored features",
        "",
        f"{made_by(document['environment'])}. {document['threads']} threads. Seconds of `ffcil run cars-vit-tiny` with "
        "`features=stored` from an empty cache, and once more:",
        "",
        "| method | first run | second run | ratio |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {row['method']} | {row['first_seconds']:.0f} s | {row['second_seconds']:.1f} s | {row['ratio']:.1f} |"
        for row in document["again"]
    ]
    lines += [
        "",
        f"{many['images']:,} made-up images of {many['features']} features, {many['classes']:,} classes in "
        f"{many['arrivals']} arrivals of AnyArrival (`keep={many['keep']}`), with a test of all classes seen after "
        f"each; the store takes {many['stored_gib']:.2f} GiB:",
        "",
    ]
    for name in ("first", "second"):
        one = many[name]
        lines.append(
            f"- {name} pass: {one['seconds']:.0f} s, slowest arrival {one['slowest_step_seconds']:.1f} s, peak memory "
            f"{one['peak_gib']:.1f} GiB, accuracy {one['accuracy']:.1f} %."
        )
    return "\n".join([*lines, ""])


def growth(path: Path) -> str:
    document = json.loads(path.read_text(encoding="utf-8"))
    before, after = document["before"], document["after"]
    lines = [
        "## Long and wide runs",
        "",
        f"{made_by(document['environment'])}. Every case is a process with at most {document['open_files']} open files "
        f"on {document['cores']} cores. Three images of each class (`run-icarl-1000000-images`: 10,000) are trained "
        f"on, and one is tested. Before: commit {before['commit'][:7]}; after: commit {after['commit'][:7]}. CPU "
        "seconds are missing where they were not measured.",
        "",
        "| case | seconds (CPU) before, after | peak MB before, after | page MB before, after |",
        "|---|---|---|---|",
    ]
    for case in dict.fromkeys([*before["cases"], *after["cases"]]):
        sides = [some["cases"].get(case, {}) for some in (before, after)]
        times = [f"{_figure(side, 'seconds')} ({_figure(side, 'cpu_seconds')})" for side in sides]
        others = [", ".join(_figure(side, key) for side in sides) for key in ("peak_mb", "page_mb")]
        lines.append(f"| `{case}` | {', '.join(times)} | {' | '.join(others)} |")
    return "\n".join([*lines, ""])


def _figure(case: dict[str, Any], key: str) -> str:
    return f"{case[key]:,}" if key in case else "–"


def made_by(environment: dict[str, Any]) -> str:
    return (
        f"{environment['device']}, torch {environment['torch']}, commit {environment['commit']}: "
        f"`{environment['command']}`"
    )


def page() -> str:
    parts = [INTRODUCTION, *(study(folder) for folder in sorted(RESULTS.iterdir()) if (folder / "ABOUT.md").exists())]
    parts += [
        training_step(RESULTS / "training-step.json"),
        methods(sorted(RESULTS.glob("methods*.json"))),
        pretrained(RESULTS / "pretrained.json"),
        data(sorted(RESULTS.glob("loading*.json")), sorted(RESULTS.glob("preparing*.json"))),
        beside_pycil(sorted(RESULTS.glob("beside-pycil*.json"))),
        sharing(RESULTS / "sharing.json"),
        packing(RESULTS / "packing.json"),
        fortnight(RESULTS / "fortnight.json"),
        calibration(sorted(RESULTS.glob("calibration-*.json"))),
        many_arrivals(RESULTS / "many-arrivals.json"),
        serving(RESULTS / "serving.json"),
        classifier_speed(RESULTS / "classifier-speed.json"),
        *(stored_features(path) for path in RESULTS.glob("stored-features.json")),
        growth(RESULTS / "growth.json"),
    ]
    return "\n".join(parts)


PUBLISHED = [
    ("cifar100-icarl-equal/none-seed0", "nearest-mean", "65.1 / 49.4 (a user's log), 64.6 / 49.5 (TagFex's paper)"),
    ("cifar100-expansion-equal/der", "linear", "69.7 / 58.6"),
    ("cifar100-expansion-equal/der-alone", "linear", "the same"),
    ("cifar100-expansion-equal/memo", "linear", "70.2 / 58.5"),
    ("cifar100-expansion-equal/tagfex-third", "linear", "78.5 / 68.2"),
]
"""Run, classifier of the published figure, published average / last."""


def headline() -> str:
    """Table of README.md: runs of published settings, beside the published figures."""
    lines = ["| average / last | published | ffcil | training images/s |", "|---|---|---|---|"]
    for name, classifier, published in PUBLISHED:
        run = load_run(RESULTS / f"{name}{SUFFIX}")
        assert run.summary is not None
        epochs = run.config["train"]["epochs_scale"]
        shortened = "" if epochs == 1 else f", **{epochs:.0%} of the epochs**"
        shared = ", GPU shared" if run.environment["alone_on_the_gpu"] is False else ""
        table, what = run.tables[classifier], f"{run.config['backbone']}, {run.display_name(classifier)}{shortened}"
        lines.append(
            f"| {find_method(run.method).title}, {what} | {published} "
            f"| {average_accuracy(table):.2f} / {last_accuracy(table):.2f} "
            f"| {run.summary['images_per_second']:,.0f}{shared} |"
        )
    return "\n".join(lines)


def speeds() -> str:
    """Table of README.md: measured speeds, beside those of the usual way in the same process."""
    step, vit, loading, shared = (
        json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("training-step", "pretrained", "loading", "sharing")
    )
    steps = [row["images_per_second"] for row in step["variants"] if row.get("reduction", "mean") == "mean"]
    adapters = {(row["batch"], row["eager"]): row["images_per_second"] for row in vit["training"]}
    images = loading["images_per_second"]
    together = {(row["runs"], row["percent"]): row["images_per_second"] for row in shared["rows"]}
    rows = [
        ("iCaRL's training step, ResNet-32, batch 128, images/s", steps[-1], "eager, float32", steps[0]),
        (
            "Training adapters in a ViT-B/16, batch 48, images/s",
            adapters[48, False],
            "eager, float32",
            adapters[48, True],
        ),
        (
            "Made-up photographs cut at random to 224 x 224, images/s",
            images["store"],
            "torchvision, a DataLoader of 8 workers",
            images["data_loader"],
        ),
        (
            "Eight trainings of iCaRL at once on one GPU, images/s",
            together[8, 25],
            "one after another",
            together[1, 100],
        ),
    ]
    lines = ["| | ffcil | the usual way | |", "|---|---|---|---|"]
    lines += [f"| {what} | {ours:,.0f} | {usual} | {theirs:,.0f} |" for what, ours, usual, theirs in rows]
    return "\n".join(lines)


def with_headline(readme: str) -> str:
    for name, table in (("results", headline()), ("speeds", speeds())):
        before, rest = readme.split(f"<!-- {name} -->\n")
        _, after = rest.split(f"<!-- end of {name} -->\n")
        readme = f"{before}<!-- {name} -->\n{table}\n<!-- end of {name} -->\n{after}"
    return readme


if __name__ == "__main__":
    (RESULTS / "README.md").write_text(page(), encoding="utf-8")
    README.write_text(with_headline(README.read_text(encoding="utf-8")), encoding="utf-8")
