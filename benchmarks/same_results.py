"""Do two versions of ffcil give the same results, to the bit? Run it with the old version, then with the new one.

    python benchmarks/same_results.py write PLACE   # with the version that is trusted
    python benchmarks/same_results.py check PLACE   # with the version that is to give the same

Every method runs on glyphs on the CPU: two seeds, with and without the paper's framework. Compared are the records
(without times), the confusion counts and, through `Classifier`, the scores of test images. `check` also opens what
`write` left: finished run folders; interrupted run folders, which must resume; saved classifiers, which must learn one
more step.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

SIZES = [3, 1, 4]
SEEDS = (0, 1)
TIMES = ("seconds", "images_per_second", "peak_memory_bytes")
IMAGES_PER_CLASS = 40


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def settings(method: str, robust: bool, seed: int) -> dict[str, Any]:
    """Fields of a case. `robust`, which all versions read, is the paper's framework."""
    phase = {"epochs": 2}
    return {
        "method": method,
        "robust": robust,
        "train_seed": seed,
        "class_seed": seed,
        "arrivals": {"sizes": SIZES},
        "memory": {"budget": 40},
        "train": {"first": phase, "later": phase},
    }


def records_of(folder: Path) -> list[dict[str, Any]]:
    """The records of a run without what differs from one run to the next."""
    lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def counts_of(folder: Path) -> dict[str, str]:
    """Digests of the dense confusion counts of all steps, by classifier."""
    by_step = [dense_counts(folder / "counts" / f"step-{k + 1:03d}.npz") for k in range(len(SIZES))]
    return {name: digest(b"".join(step[name].tobytes() for step in by_step)) for name in sorted(by_step[0])}


def dense_counts(path: Path) -> dict[str, Any]:
    """Dense int64 tables by classifier, from dense arrays NAME or from sparse ones NAME/rows and so on."""
    arrays = dict(np.load(path))
    tables = {name: array for name, array in arrays.items() if "/" not in name}
    for name in [key.removesuffix("/classes") for key in arrays if key.endswith("/classes")]:
        tables[name] = np.zeros((int(arrays[f"{name}/classes"]),) * 2, dtype=np.int64)
        tables[name][arrays[f"{name}/rows"], arrays[f"{name}/columns"]] = arrays[f"{name}/values"]
    return tables


def finished_run(folder: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    import ffcil

    ffcil.Run(ffcil.resolve("glyphs", fields), folder, device="cpu", threads=1).execute()
    return {"records": records_of(folder), "counts": counts_of(folder)}


def interrupted_run(folder: Path, fields: Mapping[str, Any]) -> None:
    """A run folder whose run ended between the second step and the third."""
    import ffcil
    from ffcil.training.progress import Listener

    class Interrupting(Listener):
        def step_done(self, record: Mapping[str, Any]) -> None:
            if record["step"] == 2:
                raise KeyboardInterrupt

    try:
        config = ffcil.resolve("glyphs", fields)
        ffcil.Run(config, folder, device="cpu", threads=1, listener=Interrupting()).execute()
    except KeyboardInterrupt:
        return
    raise RuntimeError(f"{folder} was not interrupted")


def arriving() -> tuple[list[Any], Any]:
    """Images of glyphs as they arrive at a classifier, step by step, and images to test it on."""
    import torch

    import ffcil

    data = ffcil.load_dataset("glyphs")
    steps, first = [], 0
    for size in SIZES:
        names = data.train.class_names[first : first + size]
        rows = torch.cat(
            [(data.train.labels == c).nonzero().flatten()[:IMAGES_PER_CLASS] for c in range(first, first + size)]
        )
        part = data.train.subset(rows)
        steps.append(ffcil.ImageSet(part.images, part.labels - first, names))
        first += size
    return steps, data.test.images[data.test.labels < sum(SIZES)][::5]


def scores(classifier: Any, test: Any) -> str:
    guesses = classifier.predict(list(test), top=sum(SIZES))
    return digest(repr([[(guess.name, guess.score) for guess in of_image] for of_image in guesses]).encode())


def taught_classifier(folder: Path, fields: Mapping[str, Any]) -> str:
    """Teach a classifier all steps, save it after the second one, and give the digest of its final scores."""
    import ffcil

    steps, test = arriving()
    classifier = ffcil.Classifier(ffcil.resolve("glyphs", {**fields, "image_size": 32}), "cpu")
    for number, images in enumerate(steps):
        if number == 2:
            classifier.save(folder)
        classifier.learn(images)
    return scores(classifier, test)


def loaded_classifier(folder: Path) -> str:
    """Load a classifier that knows two steps, teach it the third, and give the digest of its scores."""
    import ffcil

    steps, test = arriving()
    with tempfile.TemporaryDirectory() as place:
        copy = Path(shutil.copytree(folder, Path(place) / "model"))
        classifier = ffcil.Classifier.load(copy, "cpu")
        classifier.learn(steps[2])
    return scores(classifier, test)


def write_case(place: Path, method: str, robust: bool, seed: int) -> tuple[str, dict[str, Any]]:
    name, fields = case_name(method, robust, seed), settings(method, robust, seed)
    _one_thread()
    found = finished_run(place / "finished" / name, fields)
    if seed == SEEDS[0]:
        interrupted_run(place / "interrupted" / name, fields)
        found["scores"] = taught_classifier(place / "models" / name, fields)
    print(name, flush=True)
    return name, found


def check_case(place: Path, expected: Mapping[str, Any], method: str, robust: bool, seed: int) -> list[str]:
    """What differs from the trusted version, one sentence each."""
    name, fields = case_name(method, robust, seed), settings(method, robust, seed)
    _one_thread()
    wrong: list[str] = []

    def compare(what: str, now: Any, before: Any) -> None:
        if now != before:
            wrong.append(f"{name}: {what} differ: {first_difference(now, before)}")

    with tempfile.TemporaryDirectory() as temporary:
        new = finished_run(Path(temporary) / "new", fields)
        for what in ("records", "counts"):
            compare(what, new[what], expected[what])
        old = Path(shutil.copytree(place / "finished" / name, Path(temporary) / "old"))
        compare("records of the old folder", finished_run(old, fields)["records"], expected["records"])
        if seed == SEEDS[0]:
            halted = Path(shutil.copytree(place / "interrupted" / name, Path(temporary) / "interrupted"))
            resumed = finished_run(halted, fields)
            for what in ("records", "counts"):
                compare(f"resumed {what}", resumed[what], expected[what])
            compare("scores", taught_classifier(Path(temporary) / "model", fields), expected["scores"])
            compare("scores of the saved classifier", loaded_classifier(place / "models" / name), expected["scores"])
    print(name, "differs" if wrong else "same", flush=True)
    return wrong


def first_difference(now: Any, before: Any) -> str:
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        return next((first_difference(a, b) for a, b in zip(now, before, strict=True) if a != b), "")
    if isinstance(now, dict) and isinstance(before, dict):
        keys = [key for key in {**now, **before} if now.get(key) != before.get(key)]
        return "; ".join(f"{key}: {now.get(key)!r}, not {before.get(key)!r}" for key in keys[:3])
    return f"{now!r}, not {before!r}"


def case_name(method: str, robust: bool, seed: int) -> str:
    return f"{method}-{'framework' if robust else 'original'}-seed{seed}"


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=["write", "check"])
    parser.add_argument("place", type=Path, help="Folder of the trusted version's results.")
    parser.add_argument("--methods", help="Comma-separated; default: all that the trusted version has.")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="Cases at a time.")
    options = parser.parse_args()
    file = options.place / "expected.json"
    known = json.loads(file.read_text()) if options.action == "check" else {}
    if options.methods:
        methods = options.methods.split(",")
    elif known:
        methods = sorted({name.rsplit("-", 2)[0] for name in known})
    else:
        from ffcil.methods import METHODS

        methods = sorted(METHODS)
    cases = [(method, robust, seed) for method in methods for robust in (False, True) for seed in SEEDS]
    wrong: list[str] = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        if options.action == "write":
            tasks = [pool.submit(write_case, options.place, *case) for case in cases]
            file.write_text(json.dumps(dict(task.result() for task in tasks), indent=1) + "\n")
            return
        checks = [pool.submit(check_case, options.place, known[case_name(*case)], *case) for case in cases]
        wrong = [sentence for check in checks for sentence in check.result()]
    print("\n".join(wrong) or f"All {len(cases)} cases are the same.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
