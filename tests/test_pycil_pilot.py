"""Configuration files of PyCIL and PILOT give the same stream and schedule, or an error of one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ffcil.config.arrivals import GivenArrivals
from ffcil.config.resolve import not_carried_over, resolve
from ffcil.config.settings import RunConfig
from ffcil.errors import InputError
from ffcil.methods import complete

PYCIL = {
    "prefix": "reproduce",
    "dataset": "cifar100",
    "memory_size": 2000,
    "memory_per_class": 20,
    "fixed_memory": False,
    "shuffle": True,
    "init_cls": 10,
    "increment": 10,
    "model_name": "icarl",
    "convnet_type": "resnet32",
    "device": ["0"],
    "seed": [1993],
}
PILOT = {
    **{key: value for key, value in PYCIL.items() if key != "convnet_type"},
    "dataset": "cifar224",
    "memory_size": 0,
    "memory_per_class": 0,
    "model_name": "mos",
    "backbone_type": "vit_base_patch16_224_in21k_mos",
    "tuned_epoch": 7,
    "init_lr": 0.02,
    "batch_size": 24,
    "weight_decay": 0.003,
    "ffn_num": 32,
    "crct_epochs": 12,
    "ca_lr": 0.004,
    "reg": 0.2,
    "adapter_momentum": 0.3,
    "scheduler": "cosine",
    "min_lr": 1e-5,
}


def write(tmp_path: Path, content: dict[str, Any], **changes: Any) -> str:
    file = tmp_path / "exp.json"
    file.write_text(json.dumps({**content, **changes}, indent=4))
    return str(file)


def read(tmp_path: Path, content: dict[str, Any], **changes: Any) -> RunConfig:
    return complete(resolve(write(tmp_path, content, **changes)))


def sizes(config: RunConfig) -> tuple[int, ...]:
    assert isinstance(config.arrivals, GivenArrivals)
    return config.arrivals.sizes


def steps_by_their_loop(classes: int, first: int, increment: int) -> tuple[int, ...]:
    """Step sizes as PyCIL counts them: one step after another while more than an increment is left."""
    made = [first]
    while sum(made) + increment < classes:
        made.append(increment)
    return tuple(made) if sum(made) == classes else (*made, classes - sum(made))


def test_a_file_of_pycil(tmp_path: Path) -> None:
    config = read(tmp_path, PYCIL)
    published = complete(resolve("cifar100", {"method": "icarl"}))
    assert (config.method, config.backbone, config.alignment) == ("icarl", "resnet32", "none")
    assert (config.class_seed, config.train_seed, config.memory.budget) == (1993, 1993, 2000)
    assert config.train == published.train
    assert not_carried_over(str(tmp_path / "exp.json")) == []


@pytest.mark.parametrize(("first", "increment"), [(10, 10), (50, 10), (50, 7), (1, 33), (100, 10), (5, 100), (90, 10)])
def test_steps_equal_those_of_pycil(tmp_path: Path, first: int, increment: int) -> None:
    config = read(tmp_path, PYCIL, init_cls=first, increment=increment)
    assert sizes(config) == steps_by_their_loop(100, first, increment)


def test_memory_order_and_seeds(tmp_path: Path) -> None:
    config = read(tmp_path, PYCIL, fixed_memory=True, shuffle=False, seed=[7, 8, 9])
    assert (config.memory.budget, config.memory.per_class) == (None, 20)
    assert (config.class_seed, config.train_seed) == (None, 7)
    assert not_carried_over(str(tmp_path / "exp.json")) == ["seed 8, 9"]


def test_schedules_in_a_file(tmp_path: Path) -> None:
    schedule = {"init_epoch": 20, "init_lr": 0.05, "init_milestones": [5, 9], "epochs": 17, "lrate": 0.02}
    later = {"milestones": [8], "lrate_decay": 0.2, "weight_decay": 1e-4, "batch_size": 64}
    more = {"alpha_aux": 0.5, "train_base": False, "train_adaptive": True}
    config = read(tmp_path, PYCIL, model_name="memo", convnet_type="memo_resnet32", **schedule, **later, **more)
    assert (config.method, config.backbone, config.train.batch) == ("memo", "resnet32", 64)
    first, after = config.train.first, config.train.later
    assert (first.epochs, first.learning_rate, first.milestones) == (20, 0.05, (5, 9))
    assert (after.epochs, after.learning_rate, after.milestones) == (17, 0.02, (8,))
    assert (after.decay, after.weight_decay) == (0.2, 1e-4)
    assert config.options == {"auxiliary_weight": 0.5, "train_base": False}
    assert not_carried_over(str(tmp_path / "exp.json")) == ["train_adaptive True"]


def test_a_file_of_pilot(tmp_path: Path) -> None:
    config = read(tmp_path, PILOT)
    assert (config.dataset, config.method, config.image_size) == ("cifar100", "mos", 224)
    assert config.backbone == "vit_base_patch16_224.augreg_in21k"
    assert config.train.batch == 24
    for phase in (config.train.first, config.train.later):
        assert (phase.epochs, phase.learning_rate, phase.weight_decay, phase.schedule) == (7, 0.02, 0.003, "cosine")
    assert [config.options[key] for key in ("rank", "head_epochs", "head_learning_rate")] == [32, 12, 0.004]
    assert [config.options[key] for key in ("contrastive_weight", "merge_rate", "released")] == [0.2, 0.3, True]
    assert not_carried_over(str(tmp_path / "exp.json")) == ["min_lr 1e-05"]
    plain = read(tmp_path, PILOT, model_name="simplecil", backbone_type="pretrained_vit_b16_224", tuned_epoch=0)
    assert plain.backbone == "vit_base_patch16_224.augreg_in21k_ft_in1k"
    named = read(tmp_path, PILOT, dataset="omnibenchmark", init_cls=30, increment=30)
    assert (named.dataset, sum(sizes(named))) == ("omnibenchmark", 300)


EASE = {
    **{key: PILOT[key] for key in ("prefix", "dataset", "memory_size", "shuffle", "device", "seed", "weight_decay")},
    "model_name": "ease",
    "backbone_type": "vit_base_patch16_224_ease",
    "init_cls": 10,
    "increment": 5,
    "init_epochs": 20,
    "init_lr": 0.025,
    "later_epochs": 11,
    "later_lr": 0.04,
    "batch_size": 48,
    "min_lr": 0,
    "optimizer": "sgd",
    "scheduler": "cosine",
    "pretrained": True,
    "vpt_type": "Deep",
    "prompt_token_num": 5,
    "ffn_num": 32,
    "use_diagonal": False,
    "recalc_sim": True,
    "alpha": 0.2,
    "use_init_ptm": False,
    "beta": 0,
    "use_old_data": False,
    "use_reweight": True,
    "moni_adam": False,
    "adapter_num": -1,
}


def test_ease(tmp_path: Path) -> None:
    config = read(tmp_path, EASE)
    assert (config.method, config.backbone) == ("ease", "vit_base_patch16_224.augreg_in21k_ft_in1k")
    assert config.options == {"rank": 32, "other_weight": 0.2, "refresh": True}
    assert config.train.batch == 48
    first, later = config.train.first, config.train.later
    assert (first.epochs, first.learning_rate, first.weight_decay) == (20, 0.025, 0.003)
    assert (later.epochs, later.learning_rate, later.weight_decay) == (11, 0.04, 0.003)
    assert not_carried_over(str(tmp_path / "exp.json")) == []
    assert read(tmp_path, EASE, recalc_sim=False).options["refresh"] is False
    # In equal steps, and if later steps have none, PyCIL uses the values of the first step.
    for changes in ({"increment": 10}, {"later_epochs": 0, "later_lr": 0}, {"later_epochs": None, "later_lr": None}):
        train = read(tmp_path, EASE, **changes).train
        assert train.later == train.first
        assert train.later.epochs == 20
    other = {"use_init_ptm": True, "beta": 1, "use_diagonal": True, "use_reweight": False, "moni_adam": True}
    read(tmp_path, EASE, **other, use_old_data=True, adapter_num=3)
    said = not_carried_over(str(tmp_path / "exp.json"))
    assert sorted(said) == sorted(
        f"{key} {value}" for key, value in {**other, "use_old_data": True, "adapter_num": 3}.items()
    )


def test_fecam(tmp_path: Path) -> None:
    changes = {"model_name": "fecam", "backbone_type": "pretrained_vit_b16_224_adapter", "min_lr": 0}
    gone = ("crct_epochs", "ca_lr", "reg", "adapter_momentum")
    config = read(tmp_path, {key: value for key, value in PILOT.items() if key not in gone}, **changes)
    assert (config.method, config.options["rank"], config.train.batch) == ("fecam", 32, 24)
    assert (config.train.first.epochs, config.train.first.learning_rate) == (7, 0.02)
    assert not_carried_over(str(tmp_path / "exp.json")) == []


TUNA = {
    **{key: PILOT[key] for key in ("prefix", "dataset", "shuffle", "device", "seed", "init_cls", "increment")},
    "model_name": "tuna",
    "backbone_type": "vit_base_patch16_224_in21k_tuna",
    "tuned_epoch": 15,
    "init_lr": 0.01,
    "batch_size": 16,
    "weight_decay": 0.0005,
    "min_lr": 0,
    "scheduler": "cosine",
    "reg": 0.001,
    "use_orth": False,
    "crct_epochs": 30,
    "ca_lr": 0.005,
    "ca_storage_efficient_method": "covariance",
    "decay": False,
    "r": 16,
    "scale": 20.0,
    "m": 0.0,
}


def test_tuna(tmp_path: Path) -> None:
    config = read(tmp_path, TUNA)
    assert config.options == complete(resolve("cifar100-vit", {"method": "tuna"})).options
    assert not_carried_over(str(tmp_path / "exp.json")) == []
    changes = {"reg": 0.01, "use_orth": True, "decay": True, "r": 32, "scale": 10.0, "m": 0.3}
    options = read(tmp_path, TUNA, **changes, dataset="cub").options
    fields = ("orthogonality", "mean_decay", "rank", "scale", "margin", "diagonal")
    assert [options[field] for field in fields] == [0.01, True, 32, 10.0, 0.3, False]
    assert not_carried_over(str(tmp_path / "exp.json")) == []


@pytest.mark.parametrize(("stored", "diagonal"), [("covariance", False), ("variance", True), ("multi-centroid", True)])
def test_covariances_are_those_of_the_file(tmp_path: Path, stored: str, diagonal: bool) -> None:
    """The recipe of ImageNet-A has diagonal ones, with which MOS was published there."""
    changes = {"ca_storage_efficient_method": stored, "dataset": "imageneta", "min_lr": 0}
    assert read(tmp_path, PILOT, **changes).options["diagonal"] == diagonal
    unknown = [f"ca_storage_efficient_method {stored}"] if stored == "multi-centroid" else []
    assert not_carried_over(str(tmp_path / "exp.json")) == unknown


@pytest.mark.parametrize(
    ("method", "epochs", "milestones"),
    [
        ("finetune", 80, (40, 70)),
        ("replay", 70, (30, 50)),
        ("ewc", 180, (70, 120, 150)),
        ("lwf", 250, (60, 120, 180, 220)),
        ("wa", 170, (60, 100, 140)),
        ("bic", 170, (60, 100, 140)),
        ("der", 170, (80, 120, 150)),
    ],
)
@pytest.mark.parametrize("dataset", ["cifar100", "imagenet100"])
def test_schedules_in_the_code_of_pycil(
    tmp_path: Path, dataset: str, method: str, epochs: int, milestones: tuple[int, ...]
) -> None:
    later = read(tmp_path, PYCIL, model_name=method, dataset=dataset, convnet_type="resnet18").train.later
    assert (later.epochs, later.milestones, later.weight_decay) == (epochs, milestones, 2e-4)


def test_augmentation_and_tagfex(tmp_path: Path) -> None:
    more = {
        "kd_temp": 3,
        "contrast_kd_factor": 5,
        "contrast_factor": 2,
        "aux_factor": 1.5,
        "aug": 2,
        "infonce_kd_temp": 0.2,
    }
    config = read(tmp_path, PYCIL, model_name="tagfex", dataset="cifar100_aa", convnet_type="resnet18", **more)
    assert (config.backbone, config.train.augment) == ("resnet18", "auto")
    names = ("transfer_temperature", "contrastive_distillation_weight", "auxiliary_weight")
    assert [config.options[name] for name in names] == [3, 10, 1.5]  # PyCIL multiplies the two
    assert not_carried_over(str(tmp_path / "exp.json")) == []
    assert read(tmp_path, PYCIL, model_name="der", dataset="cifar100_aa").train.augment == "auto"


def test_overrides_of_method_framework_and_arrivals(tmp_path: Path) -> None:
    """Values that a choice in the file implies do not stay if the choice is replaced."""
    read(tmp_path, PYCIL)
    file = str(tmp_path / "exp.json")
    assert resolve(file, {"framework": "paper"}).alignment == "auto"
    assert resolve(file, {"method": "der"}).alignment == "auto"
    assert resolve(file, {"framework": "flow"}).alignment == "auto"
    assert resolve(file, {"robust": True}).alignment == "auto"
    assert resolve(file, {"robust": True}, {"framework": "none"}).alignment == "none"
    assert resolve(file, {"framework": "none"}).alignment == "none"
    equal = resolve(file, {"arrivals": {"kind": "equal"}}).arrivals
    assert (equal.kind, equal.steps) == ("equal", 10)  # type: ignore[union-attr]
    flow = resolve(file, {"arrivals": {"kind": "free-flow", "alpha": 0.5}}).arrivals
    assert (flow.kind, flow.steps, flow.largest) == ("free-flow", 10, 15)  # type: ignore[union-attr]
    assert resolve(file, {"method": "icarl"}).alignment == "none"  # the method of the file itself
    read(tmp_path, PYCIL, model_name="finetune", memory_size=500)
    assert resolve(file, {"method": "icarl"}).memory.budget == 500
    read(tmp_path, PILOT)
    assert resolve(file, {"method": "mos"}).options["merge_rate"] == 0.3
    ranpac, published = (resolve(recipe, {"method": "ranpac"}) for recipe in (file, "cifar100-vit"))
    assert (ranpac.options, ranpac.train) == (published.options, published.train)
    with pytest.raises(InputError, match="arrivals"):
        resolve(file, {"arrivals": 5})


def test_another_method_or_network_may_replace_an_unsupported_one(tmp_path: Path) -> None:
    """So a method of one's own runs on the stream of a file, and is compared with the method of the file."""
    file = write(tmp_path, PYCIL, model_name="foster", beta1=0.96, init_cls=50, fixed_memory=True)
    for method in ("icarl", "mine"):
        config = resolve(file, {"method": method})
        assert (config.method, config.backbone, sizes(config)) == (method, "resnet32", (50, 10, 10, 10, 10, 10))
        assert (config.memory.per_class, config.class_seed) == (20, 1993)
    assert not_carried_over(file, {"method": "icarl"}) == ["beta1 0.96"]
    file = write(tmp_path, PYCIL, model_name="podnet", convnet_type="cosine_resnet32", memory_size=0)
    config = resolve(file, {"method": "icarl", "backbone": "my-network"}, {"memory": {"budget": 70}})
    assert (config.method, config.backbone, config.memory.budget) == ("icarl", "my-network", 70)
    file = write(tmp_path, PILOT, model_name="slca", backbone_type="vit_base_patch16_224", epochs=20)
    assert resolve(file, {"method": "ranpac"}).train == resolve("cifar100-vit", {"method": "ranpac"}).train
    assert resolve(file, {"method": "mine"}).backbone == "vit_base_patch16_224.augreg_in21k_ft_in1k"
    assert "epochs 20" in not_carried_over(file, {"method": "ranpac"})


def test_hyper_parameters_of_a_replaced_method_are_named(tmp_path: Path) -> None:
    file = write(tmp_path, PYCIL, model_name="memo", alpha_aux=0.5, epochs=17)
    assert not_carried_over(file) == not_carried_over(file, {"method": "memo"}) == []
    assert not_carried_over(file, {"method": "icarl"}) == ["alpha_aux 0.5", "epochs 17"]


def test_overrides_replace_values_of_a_file(tmp_path: Path) -> None:
    read(tmp_path, PYCIL)
    config = resolve(str(tmp_path / "exp.json"), {"train": {"epochs_scale": 0.1}, "arrivals": {"sizes": [1, 4, 2]}})
    assert (config.train.epochs_scale, sizes(config)) == (0.1, (1, 4, 2))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"model_name": "foster"},
            "the method 'foster', which ffcil does not support: .* tagfex, tuna, wa, or .* with method=NAME",
        ),
        ({"dataset": "cifar10"}, "uses data set 'cifar10', which ffcil does not support: use one of cars, "),
        (
            {"convnet_type": "cosine_resnet32"},
            "the network 'cosine_resnet32', which ffcil does not support: use resnet18 or .* with backbone=NAME",
        ),
        ({"model_name": "simplecil"}, "wrong size for 'simplecil', which ffcil only has on pre-trained .* cifar224"),
        (
            {"model_name": "ranpac", "dataset": "cub", "convnet_type": "vit_large_patch16_224"},
            "'vit_large_patch16_224', which ffcil does not support: use a ViT",
        ),
        ({"dataset": "cifar224"}, "for 'icarl', which ffcil trains from scratch: use cifar100 or imagenet100, with"),
        ({"memory_size": 0}, "has memory_size 0, but 'icarl' needs exemplars"),
        ({"fixed_memory": True, "memory_per_class": None}, "has memory_per_class None"),
        ({"optimizer": "adam"}, "has optimizer 'adam', but ffcil only supports sgd"),
        ({"seed": "1993"}, "has seed '1993': give whole numbers"),
        ({"init_cls": 0}, "init_cls 0 and increment 10: give numbers of 1 to 100"),
        ({"increment": "ten"}, "increment 'ten': give numbers"),
    ],
)
def test_unsupported_files_are_an_error(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read(tmp_path, PYCIL, **changes)
