"""Packages of the extras `export` and `serve`, which ffcil itself does not need."""

import importlib.util

from ffcil.errors import InputError


def check_installed(task: str, extra: str, *modules: str) -> None:
    """Raise an error that names the extra, if one of its modules is not installed."""
    if missing := [module for module in modules if importlib.util.find_spec(module) is None]:
        raise InputError(f"{task} needs the package {missing[0]}: pip install 'ffcil[{extra}]'.")
