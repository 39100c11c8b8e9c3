"""One file a method. Importing this package registers them all."""

from ffcil.methods import finetune, icarl, joint, replay
from ffcil.methods.learner import METHODS, Learner, LearnerSettings, MethodConfig, find_method, register

__all__ = [
    "METHODS",
    "Learner",
    "LearnerSettings",
    "MethodConfig",
    "find_method",
    "finetune",
    "icarl",
    "joint",
    "register",
    "replay",
]
