"""The registered methods: finding them by name, loading them from files, and building learners."""

import sys
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, TypeVar

import torch

from ffcil.config.base import validate
from ffcil.config.flow import FLOW_PARTS
from ffcil.config.settings import RunConfig
from ffcil.data.augment import Augmentation
from ffcil.errors import InputError, unknown
from ffcil.methods.framework import Framework
from ffcil.methods.learner import Learner, LearnerSettings
from ffcil.models.pretrained import GLYPH_VIT
from ffcil.models.resnet import BACKBONES
from ffcil.training.engine import Engine
from ffcil.training.seeds import derive_seed

METHODS: dict[str, type[Learner]] = {}
Class = TypeVar("Class", bound=type[Learner])


def register(name: str) -> Callable[[Class], Class]:
    """`@register("icarl")` makes a learner available to recipes and the command line under that name."""

    def add(learner: Class) -> Class:
        _check_learner(name, learner)
        if name in METHODS:
            known, new = METHODS[name].__name__, learner.__name__
            raise InputError(f"Two methods are called {name!r}, {known} and {new}: register one under another name.")
        METHODS[name] = learner
        return learner

    return add


def _check_learner(name: str, learner: Any) -> None:
    if not (isinstance(learner, type) and issubclass(learner, Learner)):
        remedy = "make it a subclass of Conventional or Pretrained"
        raise InputError(f"{learner.__name__}, registered as method {name!r}, is no Learner: {remedy}.")
    if not hasattr(learner, "title"):
        remedy = f"give its class {learner.__name__} the attribute `title`, the name in tables"
        raise InputError(f"Method {name!r} has no title: {remedy}.")


def find_method(name: str) -> type[Learner]:
    if name not in METHODS:
        raise unknown("method", name, METHODS, own=True)
    return METHODS[name]


def is_registered(config: RunConfig) -> bool:
    """Whether the method of a configuration is registered and, if it trains from scratch, its backbone."""
    method = METHODS.get(config.method)
    return method is not None and (method.pretrained or config.backbone in BACKBONES)


def load_methods(path: str) -> None:
    """Import a Python file that registers methods or backbones, unless it was imported before. The name of its module
    is its path."""
    if not Path(path).is_file():
        raise InputError(f"There is no file {path!r} to import methods from: name a Python file with @register in it.")
    before = {*METHODS}, {*BACKBONES}
    name = str(Path(path).resolve())
    if name in sys.modules:
        return
    loader = SourceFileLoader(name, name)
    spec = spec_from_file_location(name, loader=loader)
    assert spec is not None
    module = sys.modules[name] = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    if ({*METHODS}, {*BACKBONES}) == before:
        raise InputError(
            f'{path} registers no method and no backbone: decorate its learner with @register("name"), or its network '
            'with @register_backbone("name").'
        )


def framework_of(config: RunConfig) -> Framework:
    """The parts of the framework that a configuration turns on for its method."""
    method = find_method(config.method)
    wanted = {part.needs or part.acts_on for part in FLOW_PARTS.values()} - {""}
    has = {attribute for attribute in wanted if getattr(method, attribute, False)}
    return Framework.resolve(config, method.own_alignment, method.pretrained, has)


def complete(config: RunConfig) -> RunConfig:
    """Check the fields of a configuration that depend on the method, and add their defaults."""
    method = find_method(config.method)
    _check_support(config, method)
    framework_of(config)  # parts of a framework that are for the other kind of methods are an error
    _check_option_names(config, method)
    options = validate(method.Config, config.options, "options").model_dump(mode="json")
    # glyph_vit was trained with pixels in [0, 1], which is what `published` means, and `published` keeps the names of
    # runs of earlier versions
    as_trained = "weights" if method.pretrained and config.backbone != GLYPH_VIT else "published"
    normalise = config.normalise or as_trained
    return config.model_copy(update={"options": options, "normalise": normalise})


def _check_support(config: RunConfig, method: type[Learner]) -> None:
    """Raise an error for a field that the method does not support."""
    if method.pretrained and config.backbone in BACKBONES:
        raise InputError(
            f"Method {config.method!r} needs a pre-trained network, not {config.backbone!r}: use a recipe that has "
            "one, such as cifar100-vit, or set backbone, with its tag in timm, and weights."
        )
    if config.centre_weight and not (method.uses_memory or method.trains_prototypes):
        raise InputError(
            f"centre_weight is not supported by {config.method!r}, which trains no features that are compared with "
            "class means: leave it at 0."
        )
    if config.features == "stored" and not method.pretrained:
        raise InputError(
            f"features=stored is not supported by {config.method!r}, which trains from scratch: leave it at computed."
        )
    if not method.pretrained and config.backbone not in BACKBONES:
        if config.weights is None:
            raise unknown("backbone", config.backbone, BACKBONES, own=True)
        raise InputError(
            f"Method {config.method!r} trains from scratch and cannot use the pre-trained {config.backbone!r}: use a "
            "recipe for such methods, such as cifar100 or glyphs."
        )


def _check_option_names(config: RunConfig, method: type[Learner]) -> None:
    """Raise an error for an option that is not a field of the method."""
    for option in config.options:
        if option not in method.Config.model_fields:
            known = [f"options.{name}" for name in method.Config.model_fields]
            if not known:
                raise InputError(f"Method {config.method!r} has no fields of its own: remove options.{option}.")
            raise unknown(f"field of method {config.method}", f"options.{option}", known)


def build_learner(config: RunConfig, augmentation: Augmentation, engine: Engine) -> Learner:
    """Build the learner of a configuration on the engine's device."""
    config = complete(config)
    method = find_method(config.method)
    settings = LearnerSettings(
        backbone=config.backbone,
        weights=config.weights,
        memory=config.memory,
        train=config.train.scaled(),
        framework=framework_of(config),
        augmentation=augmentation,
        engine=engine,
        seed=config.train_seed,
        evaluate_batch=config.evaluate_batch,
        stored_features=config.features == "stored",
    )
    torch.manual_seed(derive_seed(config.train_seed, 0, "initialisation"))
    return method(settings, method.Config.model_validate(config.options))
