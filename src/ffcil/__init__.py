"""Free-flow class-incremental learning: classifiers that keep learning while new classes arrive in any number."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

__version__ = "0.1.0"

# The module of each public name, which is imported on first use, so that `import ffcil` does not import torch.
_HOME = {
    "Arrivals": "ffcil.arrivals",
    "equal_arrivals": "ffcil.arrivals",
    "free_flow": "ffcil.arrivals",
    "from_trace": "ffcil.arrivals",
    "given_arrivals": "ffcil.arrivals",
    "half_arrivals": "ffcil.arrivals",
    "trickle_arrivals": "ffcil.arrivals",
    "ImageSet": "ffcil.data.image_set",
    "load_dataset": "ffcil.data.sources",
    "dataset_of": "ffcil.data.sources",
    "Stream": "ffcil.stream",
    "Increment": "ffcil.stream",
    "class_wise_mean": "ffcil.losses",
    "weight_alignment": "ffcil.alignment",
    "diwa": "ffcil.alignment",
    "Learner": "ffcil.methods",
    "register": "ffcil.methods",
    "build_learner": "ffcil.methods",
    "Backbone": "ffcil.models.resnet",
    "register_backbone": "ffcil.models.resnet",
    "Engine": "ffcil.training.engine",
    "evaluate": "ffcil.runs.run",
    "RunConfig": "ffcil.config.settings",
    "resolve": "ffcil.config.resolve",
    "Run": "ffcil.runs.run",
    "Classifier": "ffcil.classifier.classifier",
    "InputError": "ffcil.errors",
}
_MODULES = ("alignment", "arrivals", "losses", "methods", "metrics", "report")
_RENAMED = {"equal": "equal_arrivals", "given": "given_arrivals", "half": "half_arrivals"}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(f"ffcil.{name} is now ffcil.{_RENAMED[name]}.", DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"ffcil.{name}")
    raise AttributeError(f"module 'ffcil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
