"""Translation of PyCIL and PILOT configuration files (exps/*.json): the same stream, memory, method and schedule.

Settings that ffcil supports are translated. Settings that a file does not contain, because PyCIL has most
hyper-parameters in its code, come from the recipe of the same data set. `left_out` lists settings that are not
translated.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ffcil.errors import InputError


class _Setting(NamedTuple):
    """The data set of a file in ffcil."""

    recipe: str
    classes: int
    dataset: str | None = None
    """Name of the data set if it is not that of the recipe."""


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
_VIT_RECIPES = {setting.recipe for setting in _DATASETS.values()} - {"cifar100", "imagenet100"}
_WITHOUT_MEMORY = ("ewc", "finetune", "lwf")
_CONVENTIONAL = (*_WITHOUT_MEMORY, "bic", "der", "icarl", "memo", "replay", "tagfex", "wa")
_PRETRAINED = {name: name for name in ("ease", "fecam", "mos", "ranpac", "simplecil", "tuna")} | {
    "aper_adapter": "aper"
}
_BACKBONES = {f"{prefix}{name}": name for name in ("resnet32", "resnet18") for prefix in ("", "memo_")}
_VITS = {"": "vit_base_patch16_224.augreg_in21k_ft_in1k", "_in21k": "vit_base_patch16_224.augreg_in21k"}
"""Current names of the weights of vit_base_patch16_224 and vit_base_patch16_224_in21k in timm 0.6.12."""
_VIT_NAME = re.compile(r"(?:pretrained_vit_b16_224|vit_base_patch16_224)(_in21k)?(?:_adapter|_ease|_mos|_tuna)?")
_OPTIONS = {
    "aper": {"ffn_num": "rank"},
    "ease": {"ffn_num": "rank", "alpha": "other_weight", "recalc_sim": "refresh"},
    "fecam": {"ffn_num": "rank"},
    "ranpac": {"ffn_num": "rank", "M": "hidden"},
    "mos": {
        "ffn_num": "rank",
        "crct_epochs": "head_epochs",
        "ca_lr": "head_learning_rate",
        "adapter_momentum": "merge_rate",
        "reg": "contrastive_weight",
    },
    "tuna": {
        "r": "rank",
        "crct_epochs": "head_epochs",
        "ca_lr": "head_learning_rate",
        "reg": "orthogonality",
        "decay": "mean_decay",
        "scale": "scale",
        "m": "margin",
    },
    "memo": {"alpha_aux": "auxiliary_weight", "train_base": "train_base"},
    "tagfex": {
        "aux_factor": "auxiliary_weight",
        "contrast_factor": "contrastive_weight",
        "infonce_temp": "contrastive_temperature",
        "kd_temp": "transfer_temperature",
        "proj_hidden_dim": "projector_hidden",
        "proj_output_dim": "projector_features",
        "attn_num_heads": "heads",
        "contrast_kd_factor": "contrastive_distillation_weight",
    },
}
_DIAGONAL = {"covariance": False, "variance": True}
"""Values of `ca_storage_efficient_method` (MOS and TUNA), and whether covariances are then diagonal."""
_PHASE = ("epochs", "learning_rate", "milestones", "decay", "weight_decay")
_FIRST_PHASE = ("init_epoch", "init_lr", "init_milestones", "init_lr_decay", "init_weight_decay")
_LATER_PHASE = ("epochs", "lrate", "milestones", "lrate_decay", "weight_decay")
_PHASES = {
    "first": dict(zip(_FIRST_PHASE, _PHASE, strict=True)),
    "later": dict(zip(_LATER_PHASE, _PHASE, strict=True)),
}
_TUNING = {"tuned_epoch": "epochs", "init_lr": "learning_rate", "weight_decay": "weight_decay"}
_EASE_PHASES = {
    "first": {"init_epochs": "epochs", "init_lr": "learning_rate", "weight_decay": "weight_decay"},
    "later": {"later_epochs": "epochs", "later_lr": "learning_rate"},
}
"""Later settings that are missing or 0 are those of the first step; in equal steps, all are."""
_STREAM = ("dataset", "init_cls", "increment", "shuffle", "seed", "memory_size", "memory_per_class", "fixed_memory")
_IRRELEVANT = (
    *("prefix", "device", "debug", "skip", "model_name", "convnet_type", "backbone_type", "batch_size"),
    *("pretrained", "vpt_type", "prompt_token_num", "n_centroids", "ca_storage_efficient_method_choices"),
)
"""Settings that are translated elsewhere, or that have no effect on the results."""
_SAME_AS_FFCIL: dict[str, Any] = {
    "optimizer": "sgd",
    "t_max": None,
    "infonce_kd_temp": 0.2,
    "init_interpolation_factor": 0.95,
    "ta_convnet_type": "resnet18",
    "aug": 2,
    "adapter_num": -1,
    **dict.fromkeys(("trans_cls_factor", "transfer_factor"), 1),
    **dict.fromkeys(("min_lr", "drop", "drop_path", "beta"), 0),
    **dict.fromkeys(("reinit_optimizer", "ensemble", "use_RP", "use_reweight"), True),
    **dict.fromkeys(("use_simplecil", "train_adaptive", "use_diagonal", "use_init_ptm"), False),
    **dict.fromkeys(("use_old_data", "moni_adam"), False),
}
"""Values that agree with the behaviour of ffcil."""


def is_foreign(content: Mapping[str, Any]) -> bool:
    """Whether a file is a configuration of PyCIL or PILOT."""
    return "model_name" in content and bool({"init_cls", "prefix"} & content.keys())


def translate(
    content: Mapping[str, Any], what: str, overrides: Sequence[Mapping[str, Any]] = ()
) -> tuple[str, dict[str, Any]]:
    """The recipe of the same data set, and the fields in which the file differs; `what` names the file in errors.

    If `overrides`, which are applied later, change the kind of arrivals, the method, the network, the memory or the
    framework, the fields that follow from the file's own choice are omitted, and the file's own need not be supported.
    """
    name = str(content.get("dataset", "")).lower()
    if name not in _DATASETS:
        known = ", ".join(sorted(_DATASETS))
        raise InputError(f"{what} uses data set {name!r}, which ffcil does not support: use one of {known}.")
    setting, method = _DATASETS[name], _method(content, what, overrides)
    pretrained, seed = _is_pretrained(setting, method, what), _seeds(content, what)[0]
    fields: dict[str, Any] = {
        "method": method,
        "arrivals": _arrivals(_sizes(content, setting.classes, what), overrides),
        "class_seed": seed if content.get("shuffle", True) else None,
        "train_seed": seed,
    }
    if _last(overrides, "backbone") is None:
        fields["backbone"] = _network(content, setting, pretrained, what)
    if not pretrained and _last(overrides, "memory") is None:
        fields.update(_memory(content, method, what))
    if setting.dataset:
        fields["dataset"] = setting.dataset
    train: dict[str, Any] = {}
    if _is_own(content, method):
        if method == "icarl" and _last(overrides, "framework") in (None, "none"):
            fields["alignment"] = "none"  # PyCIL evaluates the nearest mean and does not align the head
        if options := _method_options(content, method):
            fields["options"] = options
        train = _training(content, method, what)
    if name.endswith("_aa"):
        train["augment"] = "auto"
    if train:
        fields["train"] = train
    return setting.recipe, fields


def _last(overrides: Sequence[Mapping[str, Any]], field: str) -> Any:
    """The value that the last of `overrides` with this field gives it; None if there is no such override."""
    return next((over[field] for over in reversed(overrides) if field in over), None)


def _is_own(content: Mapping[str, Any], method: str) -> bool:
    """Whether the method is that of the file, so that the file's hyper-parameters apply."""
    name = str(content["model_name"]).lower()
    return _PRETRAINED.get(name, name) == method


def _arrivals(sizes: list[int], overrides: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    arrivals = [over["arrivals"] for over in overrides if isinstance(over.get("arrivals"), Mapping)]
    kinds = [fields["kind"] for fields in arrivals if "kind" in fields]
    return {"steps": len(sizes)} if kinds and kinds[-1] != "given" else {"kind": "given", "sizes": sizes}


def _method_options(content: Mapping[str, Any], method: str) -> dict[str, Any]:
    options = _renamed(content, _OPTIONS.get(method, {}))
    if method == "mos":
        options["released"] = True  # the behaviour of the released code
    if method in ("mos", "tuna") and (stored := str(content.get("ca_storage_efficient_method"))) in _DIAGONAL:
        options["diagonal"] = _DIAGONAL[stored]
    if method == "tuna" and content.get("use_orth") is False:
        options["orthogonality"] = 0.0
    if "contrastive_distillation_weight" in options:  # in TagFex, relative to the weight of the other term
        options["contrastive_distillation_weight"] *= options.get("contrastive_weight", 1)
    return options


def left_out(content: Mapping[str, Any], what: str, overrides: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Settings of a file that are not translated, with their values."""
    method = _method(content, what, overrides)
    pretrained, seeds = method in _PRETRAINED.values(), _seeds(content, what)
    known = {*_STREAM, *_IRRELEVANT}
    if _is_own(content, method):
        known |= {*_OPTIONS.get(method, {}), *(key for phase in _phases(method).values() for key in phase)}
    here = {**_SAME_AS_FFCIL, "scheduler": "cosine" if pretrained else "steplr"}
    if pretrained:  # not used by a cosine schedule
        known |= {"init_milestones", "init_lr_decay"}
    if method == "simplecil":  # nothing is trained
        known |= {"min_lr"}
    if method == "tuna":
        known |= {"use_orth"}
    if str(content.get("ca_storage_efficient_method")) in _DIAGONAL:
        known |= {"ca_storage_efficient_method"}
    further = [f"seed {', '.join(map(str, seeds[1:]))}"] if len(seeds) > 1 else []
    ignored = {key: value for key, value in content.items() if key not in known and here.get(key, ...) != value}
    return further + [f"{key} {value}" for key, value in ignored.items()]


def _method(content: Mapping[str, Any], what: str, overrides: Sequence[Mapping[str, Any]]) -> str:
    """Name of the method in ffcil. That of an override may be the user's own."""
    if (chosen := _last(overrides, "method")) is not None:
        return str(chosen)
    name = str(content["model_name"]).lower()
    if name not in (*_CONVENTIONAL, *_PRETRAINED):
        known = ", ".join(sorted([*_CONVENTIONAL, *_PRETRAINED]))
        remedy = f"use one of {known}, or run another method on its stream with method=NAME"
        raise InputError(f"{what} uses the method {name!r}, which ffcil does not support: {remedy}.")
    return _PRETRAINED.get(name, name)


def _is_pretrained(setting: _Setting, method: str, what: str) -> bool:
    """Whether the method runs on a pre-trained network. A user's own method is of the kind that the images are for."""
    large = setting.recipe in _VIT_RECIPES
    if method in _PRETRAINED.values() and not large:
        cause, remedy = "which ffcil only has on pre-trained networks", "cifar224, with a ViT-B/16 (PILOT's names)"
    elif method in _CONVENTIONAL and large:
        cause, remedy = "which ffcil trains from scratch", "cifar100 or imagenet100, with resnet18 or resnet32"
    else:
        return large
    raise InputError(f"{what} has images of the wrong size for {method!r}, {cause}: use {remedy}.")


def _network(content: Mapping[str, Any], setting: _Setting, pretrained: bool, what: str) -> str:
    """Name of the backbone in ffcil."""
    name = str(content.get("convnet_type") or content.get("backbone_type") or "").lower()
    vit = _VIT_NAME.fullmatch(name)
    if not (vit if pretrained else name in _BACKBONES):
        kind = "a ViT-B/16 (PILOT's names)" if pretrained else "resnet18 or resnet32"
        remedy = f"use {kind}, or run it on another one with backbone=NAME"
        raise InputError(f"{what} uses the network {name!r}, which ffcil does not support: {remedy}.")
    if vit:
        return _VITS[vit[1] or ""]
    large = setting.recipe == "imagenet100" and _BACKBONES[name] == "resnet18"
    return "resnet18-imagenet" if large else _BACKBONES[name]


def _memory(content: Mapping[str, Any], method: str, what: str) -> dict[str, Any]:
    field, key = ("per_class", "memory_per_class") if content.get("fixed_memory") else ("budget", "memory_size")
    count = content.get(key)
    if not isinstance(count, int) or count < 1:
        if method in _WITHOUT_MEMORY or method not in _CONVENTIONAL:  # whether a user's own has one is not known here
            return {}
        raise InputError(f"{what} has {key} {count!r}, but {method!r} needs exemplars: give a whole number.")
    return {"memory": {field: count}}


def _sizes(content: Mapping[str, Any], classes: int, what: str) -> list[int]:
    """Step sizes like those of PyCIL's data manager: the first step, equal steps, and the rest."""
    first, increment = content.get("init_cls"), content.get("increment")
    if not (isinstance(first, int) and isinstance(increment, int) and 0 < first <= classes and increment > 0):
        raise InputError(f"{what} has init_cls {first!r} and increment {increment!r}: give numbers of 1 to {classes}.")
    full, rest = divmod(classes - first, increment)
    return [first, *[increment] * full, *([rest] if rest else [])]


def _seeds(content: Mapping[str, Any], what: str) -> Sequence[int]:
    seeds = content.get("seed", 1993)
    listed = seeds if isinstance(seeds, list) else [seeds]
    if not listed or not all(type(seed) is int for seed in listed):
        raise InputError(f"{what} has seed {seeds!r}: give whole numbers.")
    return listed


def _renamed(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {field: content[key] for key, field in names.items() if content.get(key) is not None}


def _phases(method: str) -> Mapping[str, Mapping[str, str]]:
    """Fields of a schedule by phase, as a mapping from names in the file to names in ffcil."""
    if method in _PRETRAINED.values():
        return _EASE_PHASES if method == "ease" else {"first": _TUNING}
    return _PHASES


def _training(content: Mapping[str, Any], method: str, what: str) -> dict[str, Any]:
    """The schedule of the file, if it has one."""
    if content.get("optimizer", "sgd") != "sgd":
        raise InputError(f"{what} has optimizer {content['optimizer']!r}, but ffcil only supports sgd.")
    if method == "simplecil":
        return {}
    phases = {name: found for name, names in _phases(method).items() if (found := _renamed(content, names))}
    if method in _PRETRAINED.values() and phases:
        first, own = phases.get("first", {}), phases.get("later", {})
        if content["init_cls"] == content["increment"]:
            own = {}
        phases["later"] = {**first, **{key: value for key, value in own.items() if value}}
    batch = {"batch": content["batch_size"]} if phases and "batch_size" in content else {}
    return {**batch, **phases}
