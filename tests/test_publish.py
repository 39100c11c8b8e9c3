"""Published runs: they hold what the folder holds, and name no folders of the machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from ffcil.cli import app
from ffcil.config.resolve import load_recipe
from ffcil.errors import InputError
from ffcil.report import compare, load_run, load_runs
from ffcil.report.render.page_runs import repeat_command
from ffcil.report.render.tables import comparison_markdown
from ffcil.runs.published import publish, without_machine_paths
from invented_runs import random_hits, write_run, write_study

DATA = {"classes": ["a/b", "c"], "train_images": [3, 4], "test_images": [1, 2], "image_size": [8, 8], "sample": "0f"}


def write_published(folder: Path, name: str = "run", **fields: Any) -> Path:
    """Publish an invented run; returns its file."""
    run = write_run(folder / "runs" / name, "FF.org", 0, random_hits("FF.org", 0), **fields)
    (run / "data.json").write_text(json.dumps(DATA))
    return publish(run, folder / "results")


def test_a_published_run_reads_like_its_folder(tmp_path: Path) -> None:
    path = write_published(tmp_path)
    before, after = load_run(tmp_path / "runs" / "run"), load_run(path)
    assert path.name == "run.run.json"
    assert after.folder.name == before.folder.name
    for part in ("config", "arrivals", "records", "summary", "environment", "data", "method_facts", "setting"):
        assert getattr(after, part) == getattr(before, part), part
    assert list(after.tables) == list(before.tables)
    for name, table in before.tables.items():
        assert after.tables[name].sizes == table.sizes
        for one, other in zip(after.tables[name].counts, table.counts, strict=True):
            assert np.array_equal(one.dense(), other.dense())


def test_reports_of_published_runs_are_the_same(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study")
    finished = [run for run in load_runs(study) if run.finished]
    names = [str(run.folder) for run in finished]
    done = CliRunner().invoke(app, ["publish", *names, "--to", str(tmp_path / "results")])
    assert done.exit_code == 0, done.output
    assert len(done.output.splitlines()) == len(finished)
    assert comparison_markdown(compare(load_runs(tmp_path / "results"))) == comparison_markdown(compare(finished))


def test_a_published_run_is_a_recipe(tmp_path: Path) -> None:
    path = write_published(tmp_path)
    config = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())
    assert load_recipe(str(path)) == config
    assert repeat_command(load_run(path)) == f"ffcil run {path} --seed 0 --out again/run"
    started_in_python = replace(load_run(path), environment={})
    assert repeat_command(started_in_python) == f"ffcil run {path} --out again/run"


def test_fingerprints_are_stored_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_published(tmp_path, name)
    files = sorted(path.name for path in (tmp_path / "results").iterdir())
    assert len(files) == 3
    assert files[0].startswith("data-")
    assert json.loads((tmp_path / "results" / files[0]).read_text()) == DATA


def test_folders_of_the_machine_are_not_published(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "run", "FF.org", 0, random_hits("FF.org", 0), weights="/home/me/my nets/vit.safetensors",
        arrivals={"trace": "~/traces/june.csv"}, backbone="timm/vit",
    )  # fmt: skip
    command = (
        "ffcil run /home/me/r.yaml --data='/home/me/a b/c.csv' --set 'arrivals={\"trace\": \"/home/me/june.csv\"}'"
    )
    (run / "environment.json").write_text(json.dumps({"command": command, "source": "https://a.example/b/c"}))
    path = publish(run, tmp_path)
    document = json.loads(path.read_text())
    assert "/home" not in path.read_text()
    assert document["config"]["weights"] == "vit.safetensors"
    assert document["config"]["arrivals"]["trace"] == "june.csv"
    assert document["config"]["backbone"] == "timm/vit"
    assert document["environment"]["source"] == "https://a.example/b/c"
    assert document["environment"]["command"] == (
        'ffcil run r.yaml --data=c.csv --set \'arrivals={"trace": "june.csv"}\''
    )


def test_paths_to_parent_folders_are_not_published() -> None:
    environment = {
        "command": "ffcil run cars --data ../me/cars.csv --set weights=../../nets/vit.safetensors --out runs/a"
    }
    expected = "ffcil run cars --data cars.csv --set weights=vit.safetensors --out runs/a"
    assert without_machine_paths(environment) == {"command": expected}


def test_what_is_not_published(tmp_path: Path) -> None:
    unfinished = write_run(tmp_path / "run", "FF.org", 0, random_hits("FF.org", 0), done=False, steps=2)
    with pytest.raises(InputError, match=r"is unfinished \(2 of 4 steps\): finish the run first"):
        publish(unfinished, tmp_path / "results")
    assert not (tmp_path / "results").exists()
    path = write_published(tmp_path, "a")
    content = path.read_bytes()
    assert publish(tmp_path / "runs" / "a", tmp_path / "results") == path  # The same run may be published again.
    earlier = json.loads(content)
    earlier["config"]["robust"] = earlier["config"].pop("framework") == "paper"
    path.write_text(json.dumps(earlier))  # as the version with `robust` published it
    assert load_run(path).config == load_run(tmp_path / "runs" / "a").config
    publish(tmp_path / "runs" / "a", tmp_path / "results")
    assert path.read_bytes() == content
    other = write_run(tmp_path / "others" / "a", "FF.org", 1, random_hits("FF.org", 1))
    with pytest.raises(InputError, match="holds another run"):
        publish(other, tmp_path / "results")
    assert path.read_bytes() == content


def damage_counts(path: Path) -> None:
    document = json.loads(path.read_text())
    document["counts"] = document["counts"][:40]
    path.write_text(json.dumps(document))


def drop_record(path: Path) -> None:
    document = json.loads(path.read_text())
    document["records"].pop()
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:99]), "run.json is damaged"),
        (lambda p: p.write_text("[]"), "run.json is damaged"),
        (lambda p: p.write_text("{}"), "no field 'config'"),
        (lambda p: next(p.parent.glob("data-*")).unlink(), "data-.* is missing"),
        (damage_counts, "its counts cannot be read"),
        (drop_record, "3 records of 4 steps"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, damage: Any, says: str) -> None:
    path = write_published(tmp_path)
    damage(path)
    with pytest.raises(InputError, match=says):
        load_run(path)
