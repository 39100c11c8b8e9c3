"""`ffcil doctor`: packages, devices and data of this machine, with advice on what is missing."""

import platform
import shutil
from pathlib import Path
from typing import Any

import typer

from ffcil import __version__
from ffcil.commands.options import AsJson, Data
from ffcil.commands.output import print_json, print_table
from ffcil.commands.packages import check_packages


def doctor(as_json: AsJson = False, data: Data = None) -> None:
    """Check the installed packages, devices and data sets, and say how to get what is missing."""
    packages = check_packages()
    optional = [package for package in packages if package.extra]
    problems = [package.advice for package in packages if package.advice and not package.extra]
    found = {
        "ffcil": __version__,
        "python": platform.python_version(),
        "versions": {package.name: package.version for package in packages if not package.extra},
        "optional": {f"{package.name} (ffcil[{package.extra}])": package.version for package in optional},
        **({"advice": problems} if problems else _describe_machine(data)),
    }
    if as_json:
        print_json(found)
    elif problems:
        print("ffcil doctor: required packages are missing or cannot be used\n" + "\n".join(problems))
    else:
        _print_diagnosis(found)
    if problems:
        raise typer.Exit(1)


def _describe_machine(data: Path | None) -> dict[str, Any]:
    """Devices, folders and data sets. The required packages must be importable."""
    import torch

    from ffcil.data.cache import cache_folder
    from ffcil.data.catalogue import describe_sources
    from ffcil.data.sources import data_folder

    gpus = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    rows, cache = describe_sources(data), cache_folder()
    advice = []
    if absent := [row["name"] for row in rows if row["missing"] and row["classes"]]:
        advice.append(f"Not found: {', '.join(absent)}; `ffcil data list` says how to get each data set.")
    if not gpus:
        reason = "torch is built without CUDA: install a build with CUDA if this machine has a GPU"
        if cuda := torch.version.cuda:
            reason = f"torch is built for CUDA {cuda} but finds no device: check the driver with nvidia-smi"
        advice.append(f"No GPU: runs use the CPU ({reason}).")
    existing = next(path for path in (cache, *cache.parents) if path.exists())
    if (free := shutil.disk_usage(existing).free / 2**30) < 1:
        advice.append(f"Only {free:.1f} GiB are free at {cache}: free some space, or set FFCIL_CACHE.")
    bfloat16 = bool(gpus) and torch.cuda.is_bf16_supported()
    return {
        "devices": {"cpu_threads": torch.get_num_threads(), "cuda": gpus, "bfloat16": bfloat16},
        "cache": str(cache),
        "data": str(data or data_folder()),
        "data_found": {row["name"]: row["found"] for row in rows},
        "advice": advice,
    }


def _print_diagnosis(found: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    versions = {"ffcil": found["ffcil"], "python": found["python"], **found["versions"]}
    rows = {
        "versions": [f"{name} {version}" for name, version in versions.items()],
        "optional": [f"{name} {version or 'not installed'}" for name, version in found["optional"].items()],
        "devices": [*(found["devices"]["cuda"] or ["no GPU"]), f"CPU, {found['devices']['cpu_threads']} thread(s)"],
        "folders": [f"cache {found['cache']}", f"data {found['data']}"],
        "data": [f"{name}: {'found' if ok else 'not found'}" for name, ok in found["data_found"].items()],
        "advice": [f"- {advice}" for advice in found["advice"]] or ["nothing to do"],
    }
    table = Table(title="ffcil doctor", show_header=False, show_lines=True)
    for name, lines in rows.items():
        table.add_row(name, escape("\n".join(lines)))
    print_table(table)
