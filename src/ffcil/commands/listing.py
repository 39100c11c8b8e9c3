"""What there is: methods, data sets, and the state of this machine."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.table import Table

from ffcil import __version__
from ffcil.data.cache import cache_folder
from ffcil.data.sources import SOURCES, data_folder
from ffcil.methods import METHODS

PARTS = (
    "torch",
    "torchvision",
    "lightning-fabric",
    "numpy",
    "scipy",
    "safetensors",
    "pydantic",
    "matplotlib",
    "plotly",
)


def methods_as_json() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "title": method.title,
            "about": (sys.modules[method.__module__].__doc__ or "").strip().split("\n\n")[0].replace("\n", " "),
            "paper": method.paper or None,
            "classifiers": list(method.classifiers),
            "uses_memory": method.uses_memory,
            "alignment": method.own_alignment,
            "options": {
                field: {"default": info.default, "about": info.description or ""}
                for field, info in method.Config.model_fields.items()
            },
        }
        for name, method in sorted(METHODS.items())
    ]


def method_table() -> Table:
    table = Table("method", "about", "classifiers (scored first)", "own fields", title="ffcil methods", show_lines=True)
    for method in methods_as_json():
        fields = "\n".join(f"options.{name} = {info['default']}" for name, info in method["options"].items())
        table.add_row(method["name"], method["about"], "\n".join(method["classifiers"]), fields)
    return table


def datasets_as_json(data: Path | None = None) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "about": source.about,
            "origin": source.origin,
            "licence": source.licence,
            "gigabytes": source.gigabytes,
            "classes": source.classes,
            "train_images": source.counts and source.counts[0],
            "test_images": source.counts and source.counts[1],
            "image_size": source.image_size,
            "found": (problem := source.find(data)) is None,
            "missing": problem,
        }
        for name, source in SOURCES.items()
    ]


def dataset_lines(data: Path | None = None) -> str:
    """A paragraph a data set, in rich's markup: addresses must stay whole, and in a table they would not."""
    paragraphs = []
    for row in datasets_as_json(data):
        size = "" if row["gigabytes"] is None else f", {row['gigabytes']:g} GB"
        counts = [f"{n:,}" if n else "?" for n in (row["train_images"], row["test_images"])]
        facts = f"{row['classes']} classes, {' + '.join(counts)} images{size}" if row["classes"] else "any images"
        here = "[green]here[/green]" if row["found"] else "[yellow]not here[/yellow]"
        lines = [f"[bold]{row['name']}[/bold]  {facts}  {here}", escape(row["about"])]
        if row["classes"]:
            lines += [f"from {escape(row['origin'])}", f"licence: {escape(row['licence'])}"]
        if row["missing"]:
            lines.append(escape(row["missing"]))
        paragraphs.append("\n    ".join(lines))
    return "\n".join(paragraphs)


def diagnosis(data: Path | None = None) -> dict[str, Any]:
    """Facts about this machine and advice on what is missing."""
    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    free = shutil.disk_usage(_existing(cache_folder())).free
    rows = datasets_as_json(data)
    advice = []
    if absent := [row["name"] for row in rows if row["missing"] and row["classes"]]:
        advice.append(f"Not here: {', '.join(absent)}; `ffcil data list` says how to get each.")
    if not gpus:
        built = torch.version.cuda
        why = (
            f"torch is built for CUDA {built} but sees no device: check the driver with nvidia-smi"
            if built
            else ("torch is built without CUDA: install a build with it if this machine has a GPU")
        )
        advice.append(f"No GPU: runs use the CPU ({why}).")
    if free < 2**30:
        advice.append(f"Only {free / 2**30:.1f} GiB are free where {cache_folder()} is: free some, or set FFCIL_CACHE.")
    return {
        "ffcil": __version__,
        "python": platform.python_version(),
        "versions": {part: importlib.metadata.version(part) for part in PARTS},
        "devices": {
            "cpu_threads": torch.get_num_threads(),
            "cuda": gpus,
            "bfloat16": bool(gpus) and torch.cuda.is_bf16_supported(),
        },
        "cache": str(cache_folder()),
        "data": str(data or data_folder()),
        "data_found": {row["name"]: row["found"] for row in rows},
        "advice": advice,
    }


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path


def diagnosis_table(found: dict[str, Any]) -> Table:
    table = Table("", "", title="ffcil doctor", show_header=False, show_lines=True)
    versions = {"ffcil": found["ffcil"], "python": found["python"], **found["versions"]}
    table.add_row("versions", "\n".join(f"{name} {version}" for name, version in versions.items()))
    gpus = "\n".join(found["devices"]["cuda"]) or "no GPU"
    table.add_row("devices", f"{gpus}\nCPU, {found['devices']['cpu_threads']} thread(s)")
    table.add_row("folders", escape(f"cache {found['cache']}\ndata {found['data']}"))
    table.add_row(
        "data", "\n".join(f"{name}: {'found' if ok else 'not found'}" for name, ok in found["data_found"].items())
    )
    table.add_row("to do", escape("\n".join(f"- {advice}" for advice in found["advice"])) or "nothing: all is there")
    return table
