"""One file per method. Importing this package registers all of them."""

import importlib
import pkgutil

from ffcil.methods.learner import Learner, LearnerSettings, MethodConfig
from ffcil.methods.registry import METHODS, build_learner, complete, find_method, is_registered, load_methods, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "METHODS",
    "Learner",
    "LearnerSettings",
    "MethodConfig",
    "build_learner",
    "complete",
    "find_method",
    "is_registered",
    "load_methods",
    "register",
]
