"""Configuration files of PyCIL and PILOT (exps/*.json) as recipes: the same stream, memory, method and schedule.

What such a file says is carried over where ffcil has it; what it does not say (PyCIL writes most hyper-parameters into
its code) comes from the recipe of the same published setting. `left_out` names what was not carried over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ffcil.errors import InputError


class _Setting(NamedTuple):
    """A data set as ffcil has it."""

    recipe: str
    classes: int
    dataset: str | None = None
    """where it is not the recipe's"""


_DATASETS = {
    "cifar100": _Setting("cifar100", 100),
    "cifar100_aa": _Setting("cifar100", 100),
    "cifar224": _Setting("cifar100-vit", 100),
    "imagenet100": _Setting("imagenet100", 100),
    "imagenetr": _Setting("imagenet-r", 200),
    "imageneta": _Setting("imagenet-a", 200),
    "cub": _Setting("cub200", 200),
    "cars": _Setting("cars", 196),
    "objectnet": _Setting("imagenet-r", 200, "objectnet"),
    "omnibenchmark": _Setting("imagenet-r", 300, "omnibenchmark"),
    "vtab": _Setting("imagenet-r", 50, "vtab"),
}
_CONVENTIONAL = ("bic", "der", "ewc", "finetune", "icarl", "lwf", "memo", "replay", "tagfex", "wa")
_PRETRAINED = {"simplecil": "simplecil", "aper_adapter": "aper", "ranpac": "ranpac", "mos": "mos", "tuna": "tuna"}
_BACKBONES = {
    "resnet32": "resnet32",
    "memo_resnet32": "resnet32",
    "resnet18": "resnet18",
    "memo_resnet18": "resnet18",
}
_IN1K, _IN21K = "vit_base_patch16_224.augreg_in21k_ft_in1k", "vit_base_patch16_224.augreg_in21k"  # as of timm 0.6.12
_OPTIONS = {
    "aper": {"ffn_num": "rank"},
    "ranpac": {"ffn_num": "rank", "M": "hidden"},
    "mos": {"ffn_num": "rank", "crct_epochs": "head_epochs", "ca_lr": "head_learning_rate"},
    "tuna": {"ffn_num": "rank", "crct_epochs": "head_epochs", "ca_lr": "head_learning_rate"},
    "memo": {"alpha_aux": "auxiliary_weight", "train_base": "train_base"},
    "tagfex": {
        "aux_factor": "auxiliary_weight",
        "contrast_factor": "contrastive_weight",
        "infonce_temp": "contrastive_temperature",
        "kd_temp": "transfer_temperature",
        "proj_hidden_dim": "projector_hidden",
        "proj_output_dim": "projector_features",
        "attn_num_heads": "heads",
    },
}
_PHASES = {
    "first": {
        "init_epoch": "epochs",
        "init_lr": "learning_rate",
        "init_milestones": "milestones",
        "init_lr_decay": "decay",
        "init_weight_decay": "weight_decay",
    },
    "later": {
        "epochs": "epochs",
        "lrate": "learning_rate",
        "milestones": "milestones",
        "lrate_decay": "decay",
        "weight_decay": "weight_decay",
    },
}
_TUNING = {"tuned_epoch": "epochs", "init_lr": "learning_rate", "weight_decay": "weight_decay"}
_STREAM = ("dataset", "init_cls", "increment", "shuffle", "seed", "memory_size", "memory_per_class", "fixed_memory")
_NO_MATTER = (
    *("prefix", "device", "debug", "skip", "model_name", "convnet_type", "backbone_type", "batch_size", "optimizer"),
    *("pretrained", "vpt_type", "prompt_token_num"),
)
"""said otherwise, or of no consequence for what is learned"""


def is_foreign(content: Mapping[str, Any]) -> bool:
    return {"model_name", "init_cls", "increment"} <= content.keys()


def translated(content: Mapping[str, Any], what: str) -> tuple[str, dict[str, Any]]:
    """The recipe of the same published setting, and the fields in which the file differs; `what` names the file."""
    name = str(content.get("dataset", "")).lower()
    if name not in _DATASETS:
        raise InputError(
            f"{what} asks for data set {name!r}, which ffcil does not have under that name: it has "
            f"{', '.join(sorted(_DATASETS))}."
        )
    setting, method = _DATASETS[name], _method(content, what)
    seed = _seeds(content)[0]
    fields: dict[str, Any] = {
        "method": method,
        "arrivals": {"kind": "given", "sizes": _sizes(content, setting.classes, what)},
        "class_seed": seed if content.get("shuffle", True) else None,
        "train_seed": seed,
        **_network(content, setting),
    }
    if setting.dataset:
        fields["dataset"] = setting.dataset
    if method == "icarl":
        fields["alignment"] = "none"  # theirs scores the nearest mean, and leaves the head as it is
    if content.get("fixed_memory"):
        fields["memory"] = {"per_class": content["memory_per_class"]}
    elif content.get("memory_size"):
        fields["memory"] = {"budget": content["memory_size"]}
    if options := _renamed(content, _OPTIONS.get(method, {})):
        fields["options"] = options
    if train := _training(content, method):
        fields["train"] = train
    return setting.recipe, fields


def left_out(content: Mapping[str, Any]) -> list[str]:
    """What a file says that was not carried over."""
    method = _PRETRAINED.get(str(content["model_name"]).lower(), str(content["model_name"]).lower())
    phases = (_TUNING,) if method in _PRETRAINED.values() else tuple(_PHASES.values())
    known = {*_STREAM, *_NO_MATTER, *_OPTIONS.get(method, {}), *(key for phase in phases for key in phase)}
    further = [f"seeds {', '.join(map(str, _seeds(content)[1:]))}"] if len(_seeds(content)) > 1 else []
    return [*further, *(key for key in content if key not in known)]


def _method(content: Mapping[str, Any], what: str) -> str:
    name, network = str(content["model_name"]).lower(), _network_name(content)
    if name in _PRETRAINED and "resnet" not in network:
        return _PRETRAINED[name]
    if name in _CONVENTIONAL and network in _BACKBONES:
        return name
    if name not in (*_CONVENTIONAL, *_PRETRAINED):
        raise InputError(
            f"{what} asks for {name!r}, which ffcil does not have: of PyCIL's and PILOT's methods it has "
            f"{', '.join(sorted([*_CONVENTIONAL, *_PRETRAINED]))}."
        )
    raise InputError(
        f"{what} asks for {name!r} on {network!r}, which ffcil does not have: conventional methods stand on "
        f"{', '.join(sorted(_BACKBONES))}, {', '.join(sorted(_PRETRAINED))} on a ViT."
    )


def _network_name(content: Mapping[str, Any]) -> str:
    return str(content.get("convnet_type") or content.get("backbone_type") or "").lower()


def _network(content: Mapping[str, Any], setting: _Setting) -> dict[str, Any]:
    name = _network_name(content)
    if name not in _BACKBONES:
        return {"backbone": _IN21K if "in21k" in name else _IN1K}
    large = setting.recipe == "imagenet100" and _BACKBONES[name] == "resnet18"
    return {"backbone": "resnet18-imagenet" if large else _BACKBONES[name]}


def _sizes(content: Mapping[str, Any], classes: int, what: str) -> list[int]:
    """As PyCIL's data manager makes them: the first step, equal steps, and what is left."""
    first, increment = content["init_cls"], content["increment"]
    if not (isinstance(first, int) and isinstance(increment, int) and 0 < first <= classes and increment > 0):
        raise InputError(
            f"{what} has init_cls {first!r} and increment {increment!r}: give whole numbers of 1 to {classes}."
        )
    full, rest = divmod(classes - first, increment)
    return [first, *[increment] * full, *([rest] if rest else [])]


def _seeds(content: Mapping[str, Any]) -> Sequence[int]:
    seeds = content.get("seed", 1993)
    return list(seeds) if isinstance(seeds, list) and seeds else [seeds] if isinstance(seeds, int) else [1993]


def _renamed(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {ours: content[theirs] for theirs, ours in names.items() if content.get(theirs) is not None}


def _training(content: Mapping[str, Any], method: str) -> dict[str, Any]:
    """The schedule where the file has one."""
    if method in _PRETRAINED.values():
        phase = _renamed(content, _TUNING)
        trains = phase.get("epochs", 0) > 0
        phases = {"first": phase, "later": phase} if trains else {}
    else:
        phases = {name: found for name, names in _PHASES.items() if (found := _renamed(content, names))}
    batch = {"batch": content["batch_size"]} if phases and "batch_size" in content else {}
    return {**batch, **phases}
