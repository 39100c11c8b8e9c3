"""Free-flow class-incremental learning: classifiers that keep learning while new classes arrive in any number."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Where each public name lives. Loaded on first use: `import ffcil` and `ffcil --help` do not wait for torch.
_HOME = {
    "Arrivals": "ffcil.arrivals",
    "equal": "ffcil.arrivals",
    "free_flow": "ffcil.arrivals",
    "from_trace": "ffcil.arrivals",
    "given": "ffcil.arrivals",
    "half": "ffcil.arrivals",
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
    "Engine": "ffcil.training.engine",
    "evaluate": "ffcil.runs.run",
    "RunConfig": "ffcil.config.settings",
    "resolve": "ffcil.config.resolve",
    "Run": "ffcil.runs.run",
    "Classifier": "ffcil.classifier.classifier",
    "InputError": "ffcil.errors",
}
_MODULES = ("alignment", "arrivals", "losses", "methods", "metrics", "report")
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"ffcil.{name}")
    raise AttributeError(f"module 'ffcil' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
