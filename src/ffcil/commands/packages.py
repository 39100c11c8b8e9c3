"""The packages that ffcil depends on: which are installed, and how to install the others.

This module needs only `packaging` and the standard library, so that it works if any other package is missing.
"""

import importlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

MODULES = {"pillow": "PIL", "pyyaml": "yaml"}
"""Names of modules by the names of their packages, if these differ."""


@dataclass(frozen=True)
class Package:
    """A package that ffcil depends on."""

    name: str
    version: str | None = None
    """Installed version; None if the package is not installed."""
    extra: str = ""
    """Extra of ffcil that the package belongs to; empty if the package is required."""
    advice: str = ""
    """Why the package cannot be used, and the command that corrects it; empty if it can be used."""

    @property
    def module(self) -> str:
        """Name by which the package is imported."""
        return MODULES.get(self.name, self.name.replace("-", "_"))


def check_packages() -> list[Package]:
    """Check every dependency that the metadata of ffcil names. Required packages are imported, too."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return [Package("packaging", advice="packaging is not installed: pip install packaging")]
    try:
        about = metadata.metadata("ffcil")
    except metadata.PackageNotFoundError:
        return [Package("ffcil", advice="ffcil is not installed, only found as source code: pip install -e .")]
    extras = ["", *about.get_all("Provides-Extra", [])]
    packages = []
    for requirement in map(Requirement, about.get_all("Requires-Dist", [])):
        marker = requirement.marker
        applies = [extra for extra in extras if marker is None or marker.evaluate({"extra": extra})]
        packages += [_installed(requirement, extra) for extra in applies[:1]]
    required = {package.module for package in packages if not package.extra}
    return [package if package.extra or package.advice else _imported(package, required) for package in packages]


def missing_packages() -> list[Package]:
    """The required packages that cannot be used."""
    return [package for package in check_packages() if package.advice and not package.extra]


def _installed(requirement: Any, extra: str) -> Package:
    """Compare the installed version of a package with the required one."""
    name, needed = requirement.name, requirement.specifier
    remedy = f"pip install 'ffcil[{extra}]'" if extra else f"pip install '{name}{needed}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Package(name, None, extra, f"{name} is not installed: {remedy}")
    if needed.contains(version, prereleases=True):
        return Package(name, version, extra)
    return Package(name, version, extra, f"{name} {version} is installed, but ffcil needs {needed}: {remedy}")


def _imported(package: Package, required: Collection[str]) -> Package:
    """Import a package. If it fails because another required package is missing, the other one is reported instead."""
    name = package.name
    try:
        importlib.import_module(package.module)
    except Exception as error:  # a broken installation can raise any exception
        if isinstance(error, ModuleNotFoundError) and error.name != package.module and error.name in required:
            return package
        problem = f"{name} {package.version} cannot be imported ({type(error).__name__}: {error})"
        return replace(package, advice=f"{problem}: pip install --force-reinstall {name}")
    return package
