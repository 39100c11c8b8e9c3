"""One file a method. Importing this package registers them all."""

import importlib
import pkgutil

from ffcil.methods.learner import METHODS, Learner, LearnerSettings, MethodConfig, find_method, load_methods, register

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["METHODS", "Learner", "LearnerSettings", "MethodConfig", "find_method", "load_methods", "register"]
