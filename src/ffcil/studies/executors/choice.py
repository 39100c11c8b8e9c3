"""Choice of an executor by its name."""

from __future__ import annotations

from collections.abc import Mapping

from ffcil.errors import InputError, unknown
from ffcil.studies.executors.local import LocalExecutor
from ffcil.studies.executors.loop import Executor
from ffcil.studies.executors.ray import RayExecutor
from ffcil.studies.executors.slurm import SlurmExecutor

EXECUTORS = ("local", "ray", "slurm")


def make_executor(
    name: str,
    device: str | None,
    jobs: int | None,
    per_gpu: int | None = None,
    *,
    address: str | None = None,
    slurm: Mapping[str, str | int] | None = None,
    runs: int | None = None,
) -> Executor:
    """Make an executor for `runs` runs, `jobs` at a time. An option of another executor is an error."""
    if name not in EXECUTORS:
        raise unknown("executor", name, EXECUTORS)
    if address and name != "ray":
        raise InputError("--address is an option of Ray: add --executor ray.")
    if slurm and name != "slurm":
        raise InputError("--slurm is an option of SLURM: add --executor slurm.")
    if name == "ray":
        return RayExecutor(device, jobs, per_gpu, address)
    if name == "slurm":
        if per_gpu:
            raise InputError("--per-gpu is not supported by SLURM, which gives every job its own GPU: leave it out.")
        return SlurmExecutor(device, jobs, slurm or {})
    return LocalExecutor(device, jobs, per_gpu, runs)
