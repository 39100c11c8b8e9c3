"""Which runs are compared: separate rows, sweeps, and runs that must not be averaged."""

from __future__ import annotations

import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from ffcil.report import Contents, compare, load_run, load_runs, write_report
from ffcil.report.analyse.curves import class_points, mean_by_size
from ffcil.report.analyse.overhead import costs
from ffcil.report.analyse.sweeps import sweeps
from ffcil.report.render.latex import comparison_latex
from ffcil.report.render.tables import comparison_markdown
from invented_runs import FREE_FLOW, IMAGES, naive, random_hits, write_run, write_sweep

ONE = ("linear",)


def test_other_conditions_get_separate_rows_and_repeated_runs_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "Equ.T", 0, random_hits("Equ.T", 0), classifiers=("linear",))
    write_run(tmp_path / "b", "Equ.T", 1, random_hits("Equ.T", 1), classifiers=("linear",), train={"epochs": 9})
    labels = [row.label for row in compare(load_runs(tmp_path))]
    assert labels == ["iCaRL, linear head (train.epochs 3)", "iCaRL, linear head (train.epochs 9)"]
    write_run(tmp_path / "c", "Equ.T", 0, random_hits("FF.org", 0), classifiers=("linear",))
    rows = compare(load_runs(tmp_path))
    number = rows[0].number("Equ.T", "average")
    assert number is not None
    assert (number.n, number.mean) == (1, pytest.approx(naive("Equ.T", 0, "linear")[0]))
    assert "c repeats a (iCaRL, Equ.T, seed 0) and is left out of every result." in comparison_markdown(rows)


def test_runs_of_earlier_versions_join_those_that_do_the_same(tmp_path: Path) -> None:
    """They lack fields that were added later, and did what one value of each field says."""
    same: dict[str, Any] = {"features": "computed", "train": {"epochs": 3, "batch_norm": "synchronised"}}
    for seed, fields in enumerate(({}, same, {"features": "stored"})):
        write_run(tmp_path / f"{seed}", "FF.org", seed, random_hits("FF.org", seed), classifiers=ONE, **fields)
    rows = compare(load_runs(tmp_path))
    found = {row.group.condition["features"]: [run.seeds[0] for run in row.group.runs] for row in rows}
    assert found == {"computed": [0, 1], "stored": [2]}


def test_an_option_that_was_added_later_does_not_make_a_run_a_repetition(tmp_path: Path) -> None:
    for k, options in enumerate(({"blocks": 1}, {"blocks": 1, "hidden": 0}, {"blocks": 1, "hidden": 9})):
        hits = random_hits("FF.org", k)
        write_run(tmp_path / f"{k}", "FF.org", min(k, 1), hits, method="anyarrival", classifiers=ONE, options=options)
    rows = compare(load_runs(tmp_path))
    found = {row.group.condition["options.hidden"]: [run.folder.name for run in row.group.runs] for row in rows}
    assert found == {0: ["0", "1"], 9: ["2"]}


def test_methods_data_sets_and_numbers_of_steps_get_separate_rows(tmp_path: Path) -> None:
    for i, method in enumerate(("joint", "zebra", "icarl", "finetune")):
        write_run(tmp_path / f"m{i}", "Equ.T", 0, random_hits("Equ.T", 0), method=method, classifiers=("linear",))
    write_run(tmp_path / "d", "Equ.T", 0, random_hits("Equ.T", 0), dataset="digits", classifiers=("linear",))
    write_run(tmp_path / "s", "Equ.T", 0, random_hits("Equ.T", 0), sizes=(4, 4), classifiers=("linear",))
    assert [(row.data_label, row.label) for row in compare(load_runs(tmp_path))] == [
        ("digits, 8 classes in 4 steps", "iCaRL, linear head"),
        ("glyphs, 8 classes in 2 steps", "iCaRL, linear head"),
        ("glyphs, 8 classes in 4 steps", "Finetune, linear head"),
        ("glyphs, 8 classes in 4 steps", "iCaRL, linear head"),
        ("glyphs, 8 classes in 4 steps", "Zebra, linear head"),
        ("glyphs, 8 classes in 4 steps", "Joint, linear head"),
    ]


def test_class_order_of_the_data_set_counts_as_a_seed(tmp_path: Path) -> None:
    for k, seed in enumerate((None, 3)):
        write_run(tmp_path / f"r{k}", "Equ.T", 0, random_hits("Equ.T", 0), classifiers=("linear",))
        path = tmp_path / f"r{k}" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"class_seed": seed}))
    runs = load_runs(tmp_path)
    assert [run.seed_label for run in runs] == ["seeds none/0/0", "seeds 3/0/0"]
    (row,) = compare(runs)
    assert row.cells["Equ.T"].runs == 2


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep"))


def test_equal_steps_are_compared_with_every_alpha_and_order(sweep: Path) -> None:
    rows = compare(load_runs(sweep))
    assert [(row.group.label, row.group.is_main) for row in rows] == [
        ("alpha 1, order jumbled", True),
        ("alpha 0.1, order jumbled", False),
        ("alpha 1, order ascending", False),
        ("alpha 4, order jumbled", False),
    ]
    assert [{setting: cell.runs for setting, cell in row.cells.items()} for row in rows] == [
        {"Equ.T": 3, "FF.org": 3, "FF.ours": 3},
        *[{"Equ.T": 3, "FF.org": 2, "FF.ours": 2}] * 3,
    ]
    drop = rows[1].change("FF.org", "last")
    assert drop is not None
    differences = [naive("FF.org", seed, "linear")[1] - naive("Equ.T", seed, "linear")[1] for seed in (0, 1)]
    assert drop.differences == pytest.approx(differences)


def test_sweeps_vary_one_field(sweep: Path) -> None:
    rows = compare(load_runs(sweep))
    (alpha,) = sweeps(rows, "alpha")
    (order,) = sweeps(rows, "order")
    assert (alpha.values, order.values) == ([0.1, 1.0, 4.0], ["ascending", "jumbled"])
    number = order.points[0][1].number("FF.ours", "average")
    assert number is not None
    assert number.mean == pytest.approx(statistics.mean(naive("FF.ours", seed, "linear")[0] for seed in (0, 1)))


def test_runs_on_other_images_are_separate_data_sets(tmp_path: Path) -> None:
    for setting, sample in (("Equ.T", "abc"), ("FF.org", "xyz")):
        folder = write_run(tmp_path / setting, setting, 0, random_hits(setting, 0), classifiers=ONE)
        (folder / "data.json").write_text(json.dumps({"sample": sample}))
    contents = Contents.from_runs(load_runs(tmp_path))
    assert [(row.group.dataset, list(row.cells)) for row in contents.rows] == [
        ("glyphs (images 1)", ["Equ.T"]),
        ("glyphs (images 2)", ["FF.org"]),
    ]
    assert contents.changed == []
    assert contents.notes[1] == (
        "glyphs (images 2): not the same images as in the other runs on data of that name; here FF.org."
    )


def write_own(place: Path, seed: int, name: str, classes: list[str], sizes: tuple[int, ...] = (1, 4, 3)) -> None:
    """A run of given sizes on the user's own folder `name`; such a schedule need not include all classes."""
    given = {"kind": "given", "sizes": sizes}
    folder = write_run(
        place,
        "FF.org",
        seed,
        random_hits("FF.org", seed),
        classifiers=ONE,
        dataset="folder",
        sizes=sizes,
        drawn=given,
        arrivals=given,
    )
    counts = {"train_images": [9] * len(classes), "test_images": [3] * len(classes)}
    (folder / "data.json").write_text(json.dumps({"classes": classes, "sample": name, **counts}))
    (folder / "environment.json").write_text(json.dumps({"data": name}))


def test_folders_of_different_classes_are_different_data(tmp_path: Path) -> None:
    """Their runs have the data set `folder` in common, and perhaps no class with which images could be compared."""
    write_own(tmp_path / "a", 0, "birds", ["robin", "wren"])
    write_own(tmp_path / "b", 1, "ships", ["brig", "yawl"])
    contents = Contents.from_runs(load_runs(tmp_path))
    assert sorted(row.group.dataset for row in contents.rows) == ["birds", "ships"]
    assert all(cell.runs == 1 for row in contents.rows for cell in row.cells.values())
    assert not any("not the same images" in note for note in contents.notes)


def test_a_folder_that_was_renamed_is_the_same_data(tmp_path: Path) -> None:
    write_own(tmp_path / "a", 0, "birds", ["robin", "wren"])
    write_own(tmp_path / "b", 1, "birds-v1", ["wren", "robin"])
    (row,) = Contents.from_runs(load_runs(tmp_path)).rows
    assert row.cells["FF.org"].runs == 2


@pytest.mark.parametrize(
    ("sizes", "setting"),
    [((2, 2, 2), "Equ.T"), ((3, 3, 2), "Equ.T"), ((2, 3, 3), "FF.org"), ((4, 2, 2), "FF.org"), ((1, 1), "Equ.T")],
)
def test_given_sizes_of_equal_steps_are_equal_steps(tmp_path: Path, sizes: tuple[int, ...], setting: str) -> None:
    """Configuration files of PyCIL and PILOT give sizes."""
    write_own(tmp_path / "a", 0, "birds", ["robin"], sizes)
    (row,) = Contents.from_runs(load_runs(tmp_path)).rows
    assert list(row.cells) == [setting]


@pytest.mark.parametrize(("dataset", "label"), [("parquet", "cars-train"), ("cifar100", "cifar100")])
def test_user_data_is_named_after_its_file(tmp_path: Path, dataset: str, label: str) -> None:
    folder = write_run(tmp_path / "run", "FF.org", 0, random_hits("FF.org", 0), classifiers=ONE, dataset=dataset)
    (folder / "environment.json").write_text(json.dumps({"data": "cars-train"}))
    (row,) = Contents.from_runs(load_runs(tmp_path)).rows
    assert row.data_label == f"{label}, 8 classes in 4 steps"


ABC = {"a": 10, "b": 20, "c": 30}


@pytest.mark.parametrize(
    ("other", "arrivals", "alike"),
    [
        (ABC, {}, True),  # another seed changes the order of the classes
        (ABC | {"c": 31}, {}, False),
        ({"a": 10, "b": 20, "d": 30}, {}, False),
        ({"a": 10, "b": 20, "d": 30}, {"classes": 3}, True),  # another seed selects other classes
        ({"a": 10, "b": 21, "d": 30}, {"classes": 3}, False),
    ],
)
def test_seeds_with_other_images_are_not_averaged(
    tmp_path: Path, other: dict[str, int], arrivals: dict[str, int], alike: bool
) -> None:
    for seed, counts in ((0, ABC), (1, dict(reversed(other.items())))):
        hits = random_hits("FF.org", seed)
        folder = write_run(tmp_path / f"{seed}", "FF.org", seed, hits, dataset="folder", arrivals=arrivals)
        data = {
            "classes": list(counts),
            "train_images": list(counts.values()),
            "sample": f"in the order of seed {seed}",
        }
        (folder / "data.json").write_text(json.dumps(data))
    runs = [row.cells["FF.org"].runs for row in compare(load_runs(tmp_path), "linear")]
    assert runs == ([2] if alike else [1, 1])


def test_numbers_of_surrogates_and_centre_weights_separate_runs(tmp_path: Path) -> None:
    """The original method has neither and is compared with each."""
    right = {5: 6, 20: 12, 50: 18}
    for seed in (0, 1):
        write_run(tmp_path / f"org-{seed}", "FF.org", seed, lambda *_: 5, classifiers=ONE, ha={"surrogates": 20})
        for amount, hits in right.items():
            ha = {"use": True, "surrogates": amount}
            write_run(tmp_path / f"{amount}-{seed}", "FF.ours", seed, lambda *_, n=hits: n, classifiers=ONE, ha=ha)
            fields = {"centre_weight": amount / 10, "method": "der"}
            write_run(tmp_path / f"c{amount}-{seed}", "FF.org", seed, lambda *_, n=hits: n, classifiers=ONE, **fields)
        write_run(
            tmp_path / f"c-{seed}", "FF.org", seed, lambda *_: 5, classifiers=ONE, method="der", centre_weight=0.0
        )
    contents = Contents.from_runs(load_runs(tmp_path))
    assert contents.notes == []
    ours = {row.group.label: row.change("FF.ours", "last") for row in contents.rows if row.group.title == "iCaRL"}
    assert {label: change and (change.value, change.pairs) for label, change in ours.items()} == {
        f"ha.surrogates {amount}": (pytest.approx(100 * (hits - 5) / IMAGES), 2) for amount, hits in right.items()
    }
    centre = {one.group.label: list(one.cells.values())[1].numbers["last"] for one in contents.ablations}
    assert {label: number and number.mean for label, number in centre.items()} == {
        f"centre_weight {amount / 10:g}": pytest.approx(100 * hits / IMAGES) for amount, hits in right.items()
    }


def test_strengths_of_flow_separate_runs(tmp_path: Path) -> None:
    """The strength is the one that the run stored: null in a configuration, or the same value given."""
    for seed, strength, given in ((0, 1.5, None), (1, 1.5, 1.5), (0, 1.0, 1.0)):
        folder = tmp_path / f"{strength}-{seed}"
        hits = random_hits("FF.flow", seed)
        write_run(folder, "FF.flow", seed, hits, classifiers=ONE, flow={"adjust": given, "enough": None})
        facts = json.loads((folder / "method.json").read_text())
        facts["framework"]["flow"]["adjust"] = strength
        (folder / "method.json").write_text(json.dumps(facts))
        if strength == 1.5:
            write_run(tmp_path / f"org-{seed}", "FF.org", seed, random_hits("FF.org", seed), classifiers=ONE)
    rows = compare(load_runs(tmp_path))
    assert {row.group.label: {name: cell.runs for name, cell in row.cells.items()} for row in rows} == {
        "flow.adjust 1": {"FF.org": 2, "FF.flow": 1},
        "flow.adjust 1.5": {"FF.org": 2, "FF.flow": 2},
    }


def test_methods_with_equal_titles_are_distinguished(tmp_path: Path) -> None:
    for method, hits in (("icarl", 5), ("mine", 15)):
        folder = write_run(tmp_path / method, "FF.org", 0, lambda *_, n=hits: n, method=method, classifiers=ONE)
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"title": "iCaRL"}))
    contents = Contents.from_runs(load_runs(tmp_path))
    assert [row.label for row in contents.rows] == ["iCaRL [icarl], linear head", "iCaRL [mine], linear head"]
    table = comparison_latex(contents.rows)
    assert "$25.00$" in table
    assert "$75.00$" in table
    written = write_report(contents, tmp_path / "report")
    assert sum(path.name.startswith("forgetting-") and path.suffix == ".svg" for path in written) == 2
    page = (tmp_path / "report" / "report.html").read_text()
    assert '<th scope="row">iCaRL [mine]</th>' in page


def test_costs_are_ratios_over_the_same_seeds_on_the_same_device(tmp_path: Path) -> None:
    for setting, seed in itertools.product(("FF.org", "FF.ours"), (0, 1, 2)):
        folder = write_run(tmp_path / f"{setting}-{seed}", setting, seed, random_hits(setting, seed), classifiers=ONE)
        records = (folder / "records.jsonl").read_text().splitlines()
        seconds = {"train": 2.0 + seed, "memory": 1.0, "evaluate": 0.5 * (2 if setting == "FF.ours" else 1)}
        lines = [json.dumps(json.loads(record) | {"seconds": seconds}) for record in records]
        (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "FF.ours-2" / "environment.json").write_text(json.dumps({"device": "another"}))
    (cost,) = costs(load_runs(tmp_path))
    assert (cost.parts, len(cost.pairs)) == ("CWM + DIWA", 2)
    assert cost.seconds("training")[0] == pytest.approx([4 * 3.0, 4 * 4.0])
    assert (cost.ratio("training"), cost.ratio("testing")) == (pytest.approx(1.0), pytest.approx(2.0))


def test_class_sizes_are_paired_with_the_same_class_under_equal_steps(tmp_path: Path) -> None:
    for setting in ("Equ.T", "FF.org"):
        write_run(tmp_path / setting, setting, 0, random_hits(setting, 0), classifiers=ONE)
    points = class_points(load_runs(tmp_path), "linear", paired=True)
    assert points["Equ.T"] == []
    truth: dict[int, list[float]] = {}
    for step, size in enumerate(FREE_FLOW[0]):
        for position in range(sum(FREE_FLOW[0][:step]), sum(FREE_FLOW[0][: step + 1])):
            right = [random_hits(setting, 0)("linear", 4, position) for setting in ("FF.org", "Equ.T")]
            truth.setdefault(size, []).append(100 * (right[0] - right[1]) / IMAGES)
    means = mean_by_size(points["FF.org"])
    assert {size: n for size, (_, n) in means.items()} == {1: 2, 2: 2, 4: 4}
    assert {size: mean for size, (mean, _) in means.items()} == pytest.approx(
        {size: statistics.mean(values) for size, values in truth.items()}
    )


def test_names_and_bounds_are_those_that_the_run_stored(tmp_path: Path) -> None:
    for method, bound in (("floor", "lower"), ("ceiling", "upper"), ("icarl", None)):
        folder = tmp_path / method
        write_run(folder, "Equ.T", 0, random_hits("Equ.T", 0), method=method, classifiers=("linear",))
        facts = load_run(folder).method_facts | {"bound": bound, "display_names": {"linear": f"{method} head"}}
        (folder / "method.json").write_text(json.dumps(facts))
    rows = compare(load_runs(tmp_path))
    assert [row.label for row in rows] == ["Floor, floor head", "iCaRL, icarl head", "Ceiling, ceiling head"]


def test_a_trace_is_not_paired_with_another_class_order(tmp_path: Path) -> None:
    """Its class order is that of its labels. Only another run of the trace has the same one."""
    trace = {"kind": "trace", "labels": list("hgfedcba")}
    for setting, drawn in (("Equ.T", {}), ("FF.org", trace), ("FF.ours", trace)):
        hits = random_hits(setting, 0)
        write_run(tmp_path / setting, setting, 0, hits, classifiers=ONE, drawn=drawn, arrivals=drawn)
    contents = Contents.from_runs(load_runs(tmp_path))
    (row,) = contents.rows
    assert row.change("FF.org", "last") is None
    assert len(row.change("FF.ours", "last").differences) == 1  # type: ignore[union-attr]
    assert not contents.matched
    assert not any(class_points(contents.runs, "linear", paired=True).values())
