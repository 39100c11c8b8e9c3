"""PyCIL and ffcil on the same stream, from the same configuration file: seconds, images per second, accuracy.

python benchmarks/beside_pycil.py --pycil PyCIL --data DIR --method icarl --sizes 10 10 --epochs 30 --device cuda

PyCIL is a clone of https://github.com/LAMDA-CL/PyCIL (it needs scipy and tqdm), which is not changed: this script sets
the epochs and milestones of its module from outside and gives the sizes to its data manager. The seconds of a step
include training, PyCIL's tests at every fifth epoch, exemplars and evaluation, and in ffcil also compilation. Start-up
and reading of the data are not counted. Errors of PyCIL are recorded. CIFAR-100 only: DIR holds `cifar-100-python`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from result_file import write_result

BEGUN = "BEGUN"
"""Line that is printed before the first step; later errors are those of PyCIL."""


def schedule(epochs: int) -> dict[str, Any]:
    """Milestones of every step of both programs: three learning rates, as in the published schedules."""
    return {"epochs": epochs, "milestones": sorted({epochs // 2, 3 * epochs // 4} - {0})}


def learn_with_pycil(options: argparse.Namespace) -> None:
    """Run PyCIL in this process, in a folder whose `data` holds the data; prints one line of JSON per step."""
    sys.path.insert(0, str(options.pycil))
    module = importlib.import_module(f"models.{options.method}")
    for first, later in (("init_epoch", "epochs"), ("init_milestones", "milestones")):
        for name in (first, later):
            assert hasattr(module, name), f"PyCIL's {options.method} keeps its schedule elsewhere"
            setattr(module, name, schedule(options.epochs)[later])
    settings = json.loads((options.pycil / "exps" / f"{options.method}.json").read_text())
    settings["device"] = [torch.device(options.device)]
    importlib.import_module("trainer")._set_random()  # its switches of cuDNN, too
    torch.manual_seed(options.seed)
    data = importlib.import_module("utils.data_manager").DataManager("cifar100", True, 1993, 10, 10)
    data._increments = [*options.sizes, data.get_total_classnum() - sum(options.sizes)]
    learner = importlib.import_module("utils.factory").get_model(options.method, settings)
    print(BEGUN, flush=True)
    for _ in options.sizes:
        start = time.perf_counter()
        learner.incremental_train(data)
        linear, nearest_mean = learner.eval_task()
        seconds = time.perf_counter() - start
        learner.after_task()
        accuracy = {"linear": float(linear["top1"])}
        if nearest_mean is not None:
            accuracy["nearest-mean"] = float(nearest_mean["top1"])
        images = options.epochs * len(learner.train_loader.dataset)
        print("STEP" + json.dumps({"seconds": seconds, "images": images, "accuracy": accuracy}), flush=True)


def steps_of_pycil(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").symlink_to(options.data.resolve(), target_is_directory=True)
        command = [sys.executable, str(Path(__file__).resolve()), "--inside"]
        for name in ("pycil", "data", "method", "epochs", "seed", "device"):
            command += [f"--{name}", str(getattr(options, name))]
        command += ["--sizes", *map(str, options.sizes)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if BEGUN not in done.stdout:
        raise SystemExit(f"PyCIL could not be started:\n{done.stderr}")
    steps = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("STEP")]
    if done.returncode:
        return {"steps": steps, "error": done.stderr.strip().splitlines()[-1]}
    return {"steps": steps}


def steps_of_ffcil(options: argparse.Namespace) -> dict[str, Any]:
    phase = schedule(options.epochs)
    fields = {"arrivals": {"sizes": options.sizes}, "train": {"first": phase, "later": phase}}
    fields["train_seed"] = options.seed
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "ffcil", "run", str(options.pycil / "exps" / f"{options.method}.json")]
        command += ["--data", str(options.data), "--device", options.device, "--out", folder]
        for name, value in fields.items():
            command += ["--set", f"{name}={json.dumps(value)}"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        records = [json.loads(line) for line in (Path(folder) / "records.jsonl").read_text().splitlines()]
    return {
        "steps": [
            {
                "seconds": sum(record["seconds"].values()),
                "images": options.epochs * record["training_images"],
                "accuracy": record["accuracy"],
            }
            for record in records
        ]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pycil", type=lambda path: Path(path).resolve(), required=True, help="Clone of PyCIL.")
    parser.add_argument("--data", type=lambda path: Path(path).resolve(), required=True)
    parser.add_argument("--method", default="icarl")
    parser.add_argument("--sizes", nargs="+", type=int, default=[10, 10], help="Number of classes of each step.")
    parser.add_argument("--epochs", type=int, default=30, help="Epochs of each step.")
    parser.add_argument("--seed", type=int, default=1, help="Seed of training; PyCIL's default is 1.")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        learn_with_pycil(options)
        return
    sides = {"pycil": steps_of_pycil(options), "ffcil": steps_of_ffcil(options)}
    for name, side in sides.items():
        for step in side["steps"]:
            speed = step["images"] / step["seconds"]
            print(f"{name}: {step['seconds']:.1f} s, {speed:,.0f} images/s, {step['accuracy']}")
        if "error" in side:
            print(f"{name}: {side['error']}")
    if options.out:
        asked = ["git", "-C", str(options.pycil), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip() or None
        write_result(options.out, options.device, {"pycil_commit": commit, **sides})


if __name__ == "__main__":
    main()
