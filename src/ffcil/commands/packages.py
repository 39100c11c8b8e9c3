"""The packages that ffcil depends on: which are installed, and how to install the others.

This module needs only `packaging` and the standard library, so that it works if any other package is missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    module: str = ""
    """Name by which the package is imported."""
    missing_module: str | None = None
    """Module that was not found when the package was imported."""

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
            packages.append(_imported(_installed(requirement), modules))
        elif extra := next((extra for extra in extras if marker.evaluate({"extra": extra})), None):
            packages.append(_installed(requirement, extra))
    # A package that fails only because another one does is not a problem of its own.
    unusable = {package.module for package in packages if package.problem}
    return [
        replace(package, problem=None) if package.missing_module in unusable - {package.module} else package
        for package in packages
    ]


def missing_packages() -> list[Package]:
    """The required packages that cannot be used."""
    return [package for package in check_packages() if package.problem and package.extra is None]


def _installed(requirement: Requirement, extra: str | None = None) -> Package:
    """Compare the installed version of a package with the required one."""
    name, needed = requirement.name, requirement.specifier
    remedy = f"pip install '{f'ffcil[{extra}]' if extra else f'{name}{needed}'}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Package(name, None, extra, "is not installed", remedy, module=name)
    fits = needed.contains(version, prereleases=True)
    return Package(name, version, extra, None if fits else f"{version} is installed, but ffcil needs {needed}", remedy)


def _imported(package: Package, modules: Mapping[str, list[str]]) -> Package:
    """Import a package that is installed."""
    from packaging.utils import canonicalize_name

    if package.problem:
        return package
    name = canonicalize_name(package.name)
    own = [module for module, names in modules.items() if name in map(canonicalize_name, names)]
    # A package may have several modules: the one of its own name comes first, then public ones.
    module = min(own, key=lambda module: (canonicalize_name(module) != name, module.startswith("_")), default=name)
    try:
        importlib.import_module(module)
    except Exception as error:  # A broken installation can raise anything.
        missing = error.name.partition(".")[0] if isinstance(error, ModuleNotFoundError) and error.name else None
        problem = f"{package.version} cannot be imported ({type(error).__name__}: {error})"
        remedy = f"pip install --force-reinstall {package.name}"
        return replace(package, problem=problem, remedy=remedy, module=module, missing_module=missing)
    return package
