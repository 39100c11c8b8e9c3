"""Start-up on a GPU: the first two steps with an empty and with a filled cache of compiled code, and the speed after.

python benchmarks/start_up.py --device cuda --out results/start-up.json

iCaRL (ResNet-32) learns two steps of ten classes, and TUNA (a ViT with adapters) two steps of two classes, on images of
noise. Each case is a process of its own: not compiled, compiled by blocks, compiled as whole networks, each with an
empty (cold) and then with a filled (warm) cache; and by blocks without folded batch norms. `break_even` is the number
of optimiser steps after which compilation by blocks has saved the time that it took, in the first step of a run; the
constant `FEW_STEPS` of ffcil.training.compilation is to be chosen from it. `together` are several processes that start
at the same time with an empty cache: all compile, or one compiles while the others wait. On a CPU, nothing is compiled.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from epoch_ends import EpochEnds
from ffcil.arrivals import given_arrivals
from ffcil.config.resolve import resolve
from ffcil.config.settings import RunConfig
from ffcil.data.augment import Augmentation
from ffcil.data.image_set import ImageSet
from ffcil.data.sources import CIFAR100_AUGMENTATION
from ffcil.methods.registry import build_learner
from ffcil.models.resnet import Backbone
from ffcil.models.vit import ViT
from ffcil.stream import Stream
from ffcil.training import compilation
from ffcil.training.engine import Engine
from result_file import write_result

PLAIN = Augmentation(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), padding=0, flip=True, brightness=0.0)
CLASSES = {"icarl": 10, "tuna": 2}
"""Methods, with their number of classes per step."""
Case = dict[str, Any]


# --- one process ----------------------------------------------------------------------------------------------------


def compile_whole_networks() -> None:
    """Compile a backbone in two parts, and a ViT in one, instead of their blocks."""

    def both_parts(self: Backbone, *args: Any, **kwargs: Any) -> None:
        nn.Module.compile(self.lower, *args, **kwargs)
        nn.Module.compile(self.upper, *args, **kwargs)

    Backbone.compile = both_parts  # type: ignore[method-assign]
    ViT.compile = nn.Module.compile  # type: ignore[method-assign]


def noise(images: int, side: int, classes: int) -> Stream:
    """Two steps of as many images each."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (2 * images, 3, side, side), generator=generator, dtype=torch.uint8)
    labels = torch.arange(2 * images) * 2 * classes // (2 * images)
    split = ImageSet(pixels, labels, tuple(map(str, range(2 * classes))))
    return Stream(split, split, given_arrivals([classes, classes]), class_seed=None)


def configuration(case: Case, options: argparse.Namespace) -> RunConfig:
    phase = {"epochs": options.epochs, "learning_rate": 0.01}
    train = {"first": phase, "later": phase, "compile": case["code"] != "none"}
    if case["method"] == "icarl":
        return resolve("cifar100", {"train": train | {"batch": options.batch}})
    return resolve("cifar100-vit", {"method": "tuna", "backbone": options.vit, "weights": None, "train": train})


def measure(case: Case, options: argparse.Namespace) -> Case:
    """Train two steps in this process."""
    compilation.FEW_STEPS = 0
    if case["code"] == "whole":
        compile_whole_networks()
    if not case.get("folds", True):
        Engine.folds = False  # type: ignore[assignment, method-assign]
    if not case.get("waits", True):
        compilation.LONGEST_WAIT = 0.0
    config = configuration(case, options)
    engine = Engine.create(options.device, config.train)
    conventional = case["method"] == "icarl"
    stream = noise(options.images, 32 if conventional else options.side, CLASSES[case["method"]]).to(engine.device)
    start = time.perf_counter()
    learner = build_learner(config, CIFAR100_AUGMENTATION if conventional else PLAIN, engine)
    built = time.perf_counter() - start
    steps = []
    for increment in stream:
        epochs = EpochEnds()
        start = time.perf_counter()
        notes = learner.learn(increment, epochs)
        speeds = epochs.speeds()
        steps.append(
            {
                "seconds": time.perf_counter() - start,
                "first_epoch_seconds": epochs.ends[0][0],
                "start_up_seconds": notes["seconds"].get("start_up"),
                "images_per_second": max(speeds) if speeds else None,
                "milliseconds_per_step": 1000 * config.train.batch / max(speeds) if speeds else None,
            }
        )
    return {**case, "batch": config.train.batch, "build_seconds": built, "steps": steps}


# --- all processes --------------------------------------------------------------------------------------------------


def started(case: Case, options: argparse.Namespace, cache: Path) -> subprocess.Popen[str]:
    """A process that measures a case with a cache of compiled code."""
    passed = ("device", "epochs", "images", "batch", "vit", "side")
    arguments = [part for name in passed for part in (f"--{name}", str(getattr(options, name)))]
    command = [sys.executable, __file__, *arguments, "--case", json.dumps(case)]
    environment = {**os.environ, compilation.CODE_FOLDER: str(cache)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finished(process: subprocess.Popen[str]) -> Case:
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"A process ended with status {process.returncode}.")
    result: Case = json.loads(output.splitlines()[-1])
    print(json.dumps(result), flush=True)
    return result


def cases_of(method: str, options: argparse.Namespace) -> list[Case]:
    """All cases of a method, one after another."""
    found = []
    for code in ("none", "blocks", "whole"):
        with tempfile.TemporaryDirectory() as cache:
            for state in ["none"] if code == "none" else ["cold", "warm"]:
                found.append(finished(started({"method": method, "code": code, "cache": state}, options, Path(cache))))
            if code == "blocks" and method == "icarl":
                unfolded = {"method": method, "code": code, "cache": "cold for teachers", "folds": False}
                found.append(finished(started(unfolded, options, Path(cache))))
    return found


def together(options: argparse.Namespace, waits: bool) -> Case:
    """Several processes that start at the same time."""
    case = {"method": "icarl", "code": "blocks", "cache": "cold", "waits": waits}
    with tempfile.TemporaryDirectory() as cache:
        start = time.perf_counter()
        processes = [started(case, options, Path(cache)) for _ in range(options.together)]
        results = [finished(process) for process in processes]
        wall_clock = time.perf_counter() - start
    first = [result["steps"][0]["seconds"] for result in results]
    return {"waits": waits, "processes": options.together, "wall_clock_seconds": wall_clock, "first_steps": first}


def break_even(cases: list[Case]) -> dict[str, float | None]:
    """Optimiser steps after which blocks have paid, by state of the cache; None if they save nothing."""
    first = {(case["code"], case["cache"]): case["steps"][0] for case in cases if case.get("folds", True)}
    plain, found = first["none", "none"], {}
    for state in ("cold", "warm"):
        compiled = first["blocks", state]
        if compiled["milliseconds_per_step"] is None:
            return {}
        took = compiled["start_up_seconds"] - plain["start_up_seconds"] if compiled["start_up_seconds"] else 0.0
        saved = (plain["milliseconds_per_step"] - compiled["milliseconds_per_step"]) / 1000
        found[state] = took / saved if saved > 0 else None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=30, help="Epochs of each step.")
    parser.add_argument("--images", type=int, default=5_000, help="Images of each step.")
    parser.add_argument("--batch", type=int, default=128, help="Batch size of the ResNet.")
    parser.add_argument("--vit", help="ViT of timm (default: ViT-B/16; on a CPU a small one).")
    parser.add_argument("--side", type=int, help="Side of the ViT's images (default: 224; on a CPU 32).")
    parser.add_argument("--vit-epochs", type=int, default=5, help="Epochs of each step of the ViT.")
    parser.add_argument("--vit-images", type=int, default=1_000, help="Images of each step of the ViT.")
    parser.add_argument("--together", type=int, default=8, help="Processes that start at the same time; 0 skips it.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    on_gpu = options.device != "cpu"
    options.vit = options.vit or ("vit_base_patch16_224" if on_gpu else "test_vit")
    options.side = options.side or (224 if on_gpu else 32)
    if options.case:
        print(json.dumps(measure(options.case, options)))
        return
    of_vit = argparse.Namespace(**vars(options))
    of_vit.epochs = min(options.epochs, options.vit_epochs)
    of_vit.images = min(options.images, options.vit_images)
    measured = {}
    for method, chosen in (("icarl", options), ("tuna", of_vit)):
        cases = cases_of(method, chosen)
        measured[method] = {"cases": cases, "break_even": break_even(cases)}
        print(json.dumps(measured[method]["break_even"]), flush=True)
    if options.together:
        measured["together"] = [together(options, waits) for waits in (False, True)]
        print(json.dumps(measured["together"]), flush=True)
    if options.out:
        write_result(options.out, options.device, measured)


if __name__ == "__main__":
    main()
