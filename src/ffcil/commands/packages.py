"""The packages that ffcil depends on: which are installed, and how to install the others.

This module needs only `packaging` and the standard library, so that it works if any other package is missing.
"""

import importlib
from dataclasses import dataclass, replace
from importlib import metadata
from typing import Any

MODULES = {"pillow": "PIL", "pyyaml": "yaml"}
"""Modules that have another name than their package."""


@dataclass(frozen=True)
class Package:
    """A package that ffcil depends on."""

    name: str
    version: str | None = None
    """Installed version; None if the package is not installed."""
    extra: str = ""
    """Extra of ffcil that the package belongs to; empty if the package is required."""
    problem: str | None = None
    """Why the package cannot be used; None if it can be."""
    remedy: str = ""
    """Command that installs the package."""

    @property
    def advice(self) -> str:
        return f"{self.name} {self.problem}: {self.remedy}"

    @property
    def module(self) -> str:
        """Name by which the package is imported."""
        return MODULES.get(self.name, self.name.replace("-", "_"))


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
    extras = ["", *about.get_all("Provides-Extra", [])]
    packages = []
    for requirement in map(Requirement, about.get_all("Requires-Dist", [])):
        marker = requirement.marker
        applies = [extra for extra in extras if marker is None or marker.evaluate({"extra": extra})]
        packages += [_installed(requirement, extra) for extra in applies[:1]]
    return _imported(packages)


def missing_packages() -> list[Package]:
    """The required packages that cannot be used."""
    return [package for package in check_packages() if package.problem and not package.extra]


def _installed(requirement: Any, extra: str) -> Package:
    """Compare the installed version of a package with the required one."""
    name, needed = requirement.name, requirement.specifier
    remedy = f"pip install 'ffcil[{extra}]'" if extra else f"pip install '{name}{needed}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Package(name, None, extra, "is not installed", remedy)
    fits = needed.contains(version, prereleases=True)
    return Package(name, version, extra, None if fits else f"{version} is installed, but ffcil needs {needed}", remedy)


def _imported(packages: list[Package]) -> list[Package]:
    """Import the required packages. A package that only lacks another one of them is not a problem of its own."""
    errors: dict[str, Exception] = {}
    for package in packages:
        if not package.problem and not package.extra:
            try:
                importlib.import_module(package.module)
            except Exception as error:  # A broken installation can raise anything.
                errors[package.name] = error
    unusable = {package.module for package in packages if package.problem or package.name in errors}
    checked = []
    for package in packages:
        failure = errors.get(package.name)
        missing = failure.name.partition(".")[0] if isinstance(failure, ModuleNotFoundError) and failure.name else None
        if failure and missing not in unusable - {package.module}:
            problem = f"{package.version} cannot be imported ({type(failure).__name__}: {failure})"
            package = replace(package, problem=problem, remedy=f"pip install --force-reinstall {package.name}")
        checked.append(package)
    return checked
