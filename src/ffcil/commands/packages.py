"""The packages that ffcil depends on: which are installed, and how to install the others.

This module needs only `packaging` and the standard library, so that it works if any other package is missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@dataclass(frozen=True)
class Package:
    """A package that ffcil depends on."""

    name: str
    version: str | None = None
    """Installed version; None if the package is not installed."""
    extra: str | None = None
    """Extra of ffcil that the package belongs to; None if the package is required."""
    problem: str | None = None
    """Why the package cannot be used; None if it can be."""
    remedy: str = ""
    """Command that installs the package."""

    @property
    def advice(self) -> str:
        return f"{self.name} {self.problem}: {self.remedy}"


def check_packages() -> list[Package]:
    """Check every dependency that the metadata of ffcil names. Required packages are imported, too."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return [Package("packaging", problem="is not installed", remedy="pip install packaging")]
    try:
        about = metadata.metadata("ffcil")
    except metadata.PackageNotFoundError:
        return [Package("ffcil", problem="is not installed, only found as source code", remedy="pip install -e .")]
    extras = about.get_all("Provides-Extra", [])
    modules = metadata.packages_distributions()
    packages = []
    for requirement in map(Requirement, about.get_all("Requires-Dist", [])):
        marker = requirement.marker
        if marker is None or marker.evaluate({"extra": ""}):
            packages.append(_check_required(requirement, modules))
        elif extra := next((extra for extra in extras if marker.evaluate({"extra": extra})), None):
            packages.append(_check_version(requirement, f"ffcil[{extra}]", extra))
    return packages


def missing_packages() -> list[Package]:
    """The required packages that cannot be used."""
    return [package for package in check_packages() if package.problem and package.extra is None]


def _check_version(requirement: Requirement, install: str, extra: str | None = None) -> Package:
    remedy = f"pip install '{install}'"
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return Package(requirement.name, None, extra, "is not installed", remedy)
    fits = requirement.specifier.contains(version, prereleases=True)
    problem = None if fits else f"{version} is installed, but ffcil needs {requirement.specifier}"
    return Package(requirement.name, version, extra, problem, remedy)


def _check_required(requirement: Requirement, modules: Mapping[str, list[str]]) -> Package:
    package = _check_version(requirement, f"{requirement.name}{requirement.specifier}")
    if package.problem:
        return package
    try:
        importlib.import_module(_module_name(requirement.name, modules))
    except Exception as error:  # A broken installation can raise anything.
        problem = f"{package.version} cannot be imported ({type(error).__name__}: {error})"
        return Package(package.name, package.version, None, problem, f"pip install --force-reinstall {package.name}")
    return package


def _module_name(name: str, modules: Mapping[str, list[str]]) -> str:
    """The module of a package: the one of the same name if there is one, else its first public one."""
    from packaging.utils import canonicalize_name

    name = canonicalize_name(name)
    own = [module for module, names in modules.items() if name in map(canonicalize_name, names)]
    return min(own, key=lambda module: (canonicalize_name(module) != name, module.startswith("_")), default=name)
