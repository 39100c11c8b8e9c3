"""Recipes, overrides, and what is said about mistakes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from ffcil.config.resolve import describe_fields, parse_assignments, recipe_names, resolve
from ffcil.data.sources import SOURCES
from ffcil.errors import InputError
from ffcil.methods import METHODS, complete
from ffcil.models.resnet import BACKBONES


def set_(*assignments: str, recipe: str = "glyphs") -> dict[str, object]:
    return resolve(recipe, parse_assignments(assignments)).model_dump(mode="json")


@pytest.mark.parametrize("recipe", recipe_names())
def test_every_recipe_resolves_for_every_method(recipe: str) -> None:
    fitting = 0
    for method in METHODS:
        config = resolve(recipe, {"method": method})
        assert config.dataset in SOURCES
        if (config.backbone in BACKBONES) == METHODS[method].pretrained:  # recipes are of one kind
            with pytest.raises(InputError, match=r"needs a pre-trained network, not|cannot use the pre-trained"):
                complete(config)
        else:
            complete(config)
            fitting += 1
    assert fitting >= 7
    complete(resolve(recipe))


@pytest.mark.parametrize(
    ("recipe", "method", "epochs", "rate", "batch", "decay", "options"),
    [
        ("cifar100-vit", "mos", 20, 0.03, 48, 5e-4, {"diagonal": False}),
        ("imagenet-a", "mos", 10, 0.05, 32, 5e-3, {"diagonal": True}),
        ("imagenet-r", "mos", 10, 0.05, 16, 5e-3, {"rank": 16}),
        ("cub200", "mos", 10, 0.01, 32, 5e-4, {"released": False}),
        ("cifar100-vit", "tuna", 15, 0.01, 16, 5e-4, {"margin": 0.0, "orthogonality": 0.0, "mean_decay": False}),
        ("imagenet-a", "tuna", 20, 0.01, 16, 5e-4, {"margin": 0.3, "head_epochs": 10, "head_learning_rate": 0.01}),
        ("imagenet-r", "tuna", 10, 0.02, 32, 5e-4, {"head_epochs": 30, "head_learning_rate": 0.005}),
        ("cifar100-vit", "ease", 20, 0.025, 48, 5e-4, {"rank": 64, "other_weight": 0.1}),
        ("imagenet-a", "ease", 20, 0.05, 32, 5e-3, {"rank": 64, "refresh": False}),
        ("imagenet-r", "ease", 20, 0.05, 16, 5e-3, {"rank": 64}),
        ("cub200", "ease", 20, 0.008, 32, 5e-4, {"other_weight": 0.05}),
        ("cifar100-vit", "fecam", 20, 0.01, 48, 5e-4, {"variance_shrinkage": 1.0, "covariance_shrinkage": 0.0}),
        ("imagenet-r", "fecam", 10, 0.05, 16, 5e-3, {"variance_shrinkage": 10.0, "covariance_shrinkage": 10.0}),
        ("cifar100-vit", "cllora", 30, 0.03, 64, 1e-4, {"rank": 8}),
        ("imagenet-a", "cllora", 25, 0.05, 32, 5e-3, {"rank": 10}),
        ("imagenet-r", "cllora", 20, 0.05, 32, 5e-4, {"rank": 10}),
        ("cars", "moal", 80, 0.01, 48, 5e-4, {"hidden": 15000, "momentum": 0.999}),
        ("imagenet-r", "moal", 80, 0.01, 48, 5e-4, {"hidden": 20000}),
        ("cifar100-vit", "moal", 80, 0.01, 48, 5e-4, {"hidden": 5000}),
    ],
)
def test_the_published_settings_of_the_pretrained_methods(
    recipe: str, method: str, epochs: int, rate: float, batch: int, decay: float, options: dict[str, object]
) -> None:
    config = complete(resolve(recipe, {"method": method}))
    assert config.train.batch == batch
    for phase in (config.train.first, config.train.later):
        assert (phase.epochs, phase.learning_rate, phase.weight_decay) == (epochs, rate, decay)
        assert phase.schedule == "cosine"
    assert {key: config.options[key] for key in options} == options
    went_on_to_imagenet_1k = method == "moal" or (method, recipe) == ("cllora", "imagenet-r")
    assert config.backbone == "vit_base_patch16_224.augreg_in21k" + ("_ft_in1k" if went_on_to_imagenet_1k else "")


def test_the_published_schedule_of_icarl() -> None:
    train = resolve("cifar100", {"method": "icarl"}).train
    assert (train.batch, train.momentum) == (128, 0.9)
    assert (train.first.epochs, train.first.milestones, train.first.weight_decay) == (200, (60, 120, 170), 5e-4)
    assert (train.later.epochs, train.later.milestones, train.later.weight_decay) == (170, (80, 120), 2e-4)


@pytest.mark.parametrize("recipe", ["cifar100", "imagenet100", "imagenet100-half"])
@pytest.mark.parametrize("method", ["der", "memo", "tagfex"])
def test_the_published_schedule_of_the_expanding_methods(recipe: str, method: str) -> None:
    config = complete(resolve(recipe, {"method": method}))
    train = config.train
    assert (train.first.epochs, train.first.milestones, train.first.weight_decay) == (200, (60, 120, 170), 5e-4)
    assert (train.later.epochs, train.later.milestones, train.later.weight_decay) == (170, (80, 120, 150), 2e-4)
    assert train.augment == ("auto" if method == "tagfex" else "standard")
    if method == "memo":  # a large first step gives the shared network enough
        assert config.options["train_base"] == (recipe != "imagenet100-half")


def test_overrides_are_typed_yaml() -> None:
    config = set_("method=replay", "arrivals.sizes=[1,4,2]", "framework=paper", "train_seed=1", "train.first.epochs=3")
    assert config["method"] == "replay"
    assert config["arrivals"] == {"kind": "given", "sizes": [1, 4, 2], "order": "given"}
    assert config["framework"] == "paper"
    assert config["train_seed"] == 1
    assert config["train"]["first"]["epochs"] == 3  # type: ignore[index]


def test_another_kind_of_arrivals_drops_the_recipes_fields() -> None:
    assert set_("arrivals.kind=equal")["arrivals"] == {"kind": "equal", "classes": 50, "steps": 10}
    assert set_("arrivals.kind=half", "arrivals.steps=6")["arrivals"] == {"kind": "half", "classes": 50, "steps": 6}
    assert set_("arrivals.alpha=0.5")["arrivals"]["alpha"] == 0.5  # type: ignore[index]


def test_naming_one_kind_of_memory_unsets_the_other() -> None:
    assert set_("memory.per_class=20")["memory"] == {"budget": None, "per_class": 20}


def test_identity_depends_on_the_content_only() -> None:
    one, same, other = resolve("glyphs"), resolve("glyphs", {"train_seed": 0}), resolve("glyphs", {"train_seed": 1})
    assert one.identity() == same.identity() != other.identity()


def test_a_recipe_file_with_fields_by_method(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        """
dataset: glyphs
method: icarl
backbone: resnet8
arrivals: {kind: equal, steps: 2}
memory: {budget: 100}
train: {first: {epochs: 2}, later: {epochs: 2}}
methods:
  replay: {train: {later: {epochs: 7}}}
"""
    )
    assert resolve(str(path)).train.later.epochs == 2
    assert resolve(str(path), {"method": "replay"}).train.later.epochs == 7
    assert resolve(str(path), {"method": "replay", "train": {"later": {"epochs": 9}}}).train.later.epochs == 9


@pytest.mark.parametrize("recipe", recipe_names())
@pytest.mark.parametrize("model", ["simplecil", "finetune"])
def test_a_new_method_fits_every_recipe_of_its_kind(monkeypatch: pytest.MonkeyPatch, recipe: str, model: str) -> None:
    known = complete(resolve("glyphs", {"method": model}))
    monkeypatch.setitem(METHODS, "mine", METHODS[model])
    config = resolve(recipe, {"method": "mine"})
    if recipe == "glyphs":
        assert complete(config) == known.model_copy(update={"method": "mine"})
    elif (config.backbone not in BACKBONES) == METHODS[model].pretrained:
        assert complete(config).method == "mine"


def test_fields_by_kind_come_before_those_by_method(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    recipe = (
        "dataset: glyphs\nbackbone: resnet8\nmethod: icarl\nmemory: {budget: 9}\narrivals: {kind: equal, steps: 2}\n"
    )
    recipe += "train: {first: {epochs: 1}, later: {epochs: 1}}\nmethods: {wa: {train: {batch: 3}}}\n"
    path.write_text(recipe + "kinds: {conventional: {train: {batch: 5, momentum: 0.5}}, pretrained: {weights: hub}}\n")
    assert [resolve(str(path), {"method": name}).train.batch for name in ("icarl", "wa", "mos")] == [5, 3, 128]
    assert resolve(str(path), {"method": "wa"}).train.momentum == 0.5
    assert resolve(str(path), {"train": {"batch": 7}}).train.batch == 7
    assert [resolve(str(path), {"method": name}).weights for name in ("icarl", "mos")] == [None, "hub"]
    path.write_text(recipe + "kinds: {pre-trained: {weights: hub}}\n")
    with pytest.raises(InputError, match="Unknown kind of methods 'pre-trained': did you mean 'pretrained'"):
        resolve(str(path))


def test_fields_by_method_follow_the_same_rules(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    recipe = "dataset: glyphs\nbackbone: resnet8\nmethod: icarl\nmemory: {budget: 9}\n"
    recipe += "train: {first: {epochs: 1}, later: {epochs: 1}}\n"
    path.write_text(recipe + "methods: {icarl: {memory: {per_class: 5}, arrivals: {kind: equal, steps: 3}}}\n")
    assert resolve(str(path)).memory.per_class == 5
    assert resolve(str(path), {"arrivals": {"sizes": [1, 2]}}).arrivals.kind == "given"
    path.write_text(recipe)
    assert resolve(str(path), {"arrivals": {"trace": "x.csv", "window": 2}}).arrivals.kind == "trace"
    for wrong in ("[1]", "{icarl: 5}"):
        path.write_text(f"{recipe}methods: {wrong}\n")
        with pytest.raises(InputError, match="must map methods to the fields"):
            resolve(str(path))


def test_a_saved_configuration_is_a_recipe(tmp_path: Path) -> None:
    config = resolve("glyphs", {"framework": "paper", "arrivals": {"sizes": [2, 3]}})
    (tmp_path / "config.json").write_text(config.model_dump_json())
    assert resolve(str(tmp_path / "config.json")) == config


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["trainseed=1"], "Unknown field 'trainseed': did you mean 'train_seed'?"),
        (["train.frist.epochs=1"], "Unknown field 'train.frist': did you mean 'train.first'?"),
        (["train.first.epoch=1"], "Unknown field 'train.first.epoch': did you mean 'train.first.epochs'?"),
        (["arrivals.kind=free-flwo"], "Unknown kind of arrivals 'free-flwo': did you mean 'free-flow'?"),
        (["arrivals.alhpa=1"], "Unknown field 'arrivals.alhpa': did you mean 'arrivals.alpha'?"),
        (["arrivals.kind=equal", "arrivals.alpha=1"], "arrivals.alpha does not apply to kind 'equal'"),
        (["train.batch=0"], "Bad value for train.batch: Input should be greater than 0, not 0."),
        (["train.batch=many"], "Bad value for train.batch:"),
        (["train.batch=yes"], "Bad value for train: batch is a number, not true."),
        (["flow.enough=true"], "Bad value for flow: enough is a number, not true."),
        (["centre_weight=false"], "Bad value for the configuration: centre_weight is a number, not false."),
        (["robust=perhaps"], "Bad value for robust:"),
        (["arrivals.sizes=[1,0]"], "Bad value for arrivals.sizes.1: Input should be greater than 0, not 0."),
        (["arrivals.sizes=[]"], "Bad value for arrivals.sizes: Input should not be empty, not []."),
        (["arrivals.alpha=0"], "Bad value for arrivals.alpha: Input should be greater than 0, not 0."),
        (["arrivals.alpha=.inf"], "Bad value for arrivals.alpha: Input should be a finite number, not inf."),
        (["memory.budget=10", "memory.per_class=3"], "Bad value for memory: set exactly one of budget and per_class"),
        (
            ["alignment=diva"],
            "Bad value for alignment: Input should be 'auto', 'none', 'wa', 'diwa' or 'shrunk', not 'diva'.",
        ),
        (["arrivals.trace=5"], "Bad value for arrivals.trace"),
        (["method"], "Cannot read --set 'method': write it as key=value"),
        (["train=5"], "Bad value for train:"),
        (["train=5", "train.batch=3"], "contradicts the --set that gives 'train' a value"),
        (["arrivals.sizes=[1,"], "Cannot read the value of --set"),
    ],
)
def test_mistakes_are_one_sentence(assignments: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        set_(*assignments)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_recipes_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'glyphs'"):
        resolve("glyph")
    with pytest.raises(InputError, match="There is no recipe file"):
        resolve(str(tmp_path / "absent.yaml"))
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(InputError, match="must be a YAML mapping"):
        resolve(str(tmp_path / "list.yaml"))
    (tmp_path / "bad.yaml").write_text("a: [1\n")
    with pytest.raises(InputError, match="is not YAML"):
        resolve(str(tmp_path / "bad.yaml"))


def test_every_field_is_listed_and_explained() -> None:
    rows = describe_fields()
    assert all(row["about"] for row in rows), [row["name"] for row in rows if not row["about"]]
    names = {row["name"] for row in rows}
    assert {"train.first.epochs", "arrivals.alpha", "arrivals.window", "memory.budget", "diwa.tau"} <= names

    def leaves(fields: dict[str, object], prefix: str = "") -> set[str]:
        return {
            leaf
            for key, value in fields.items()
            for leaf in (leaves(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}"})
        }

    assert leaves(set_()) - {"arrivals.kind"} <= names


def test_the_identity_term_of_earlier_versions() -> None:
    """True and false are still read, and a configuration that an earlier version knew keeps its hash."""
    now, before = (resolve("glyphs", {"method": "simplecil", "ha": {"identity": value}}) for value in ("none", False))
    assert (now.ha.identity, now) == ("none", before)
    default = resolve("glyphs", {"method": "simplecil"})
    assert default.ha.identity == "sum"
    assert resolve("glyphs", {"method": "simplecil", "ha": {"identity": True}}) == default
    content = default.content() | {"ha": default.content()["ha"] | {"identity": True}, "robust": False}
    del (
        content["flow"],
        content["framework"],
        content["ha"]["guard"],
        content["features"],
        content["train"]["batch_norm"],
    )
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert default.identity() == hashlib.sha256(text.encode()).hexdigest()[:12]
    mean = resolve("glyphs", {"method": "simplecil", "ha": {"identity": "mean"}})
    assert len({default.identity(), now.identity(), mean.identity()}) == 3
    with pytest.raises(InputError, match=r"Bad value for ha.identity: Input should be 'sum', 'mean' or 'none'"):
        resolve("glyphs", {"method": "simplecil", "ha": {"identity": "median"}})


@pytest.mark.parametrize("method", ["simplecil", "mos", "moal", "ranpac", "fecam", "finetune", "ewc"])
def test_a_centre_loss_is_an_error_for_methods_without_prototypes(method: str) -> None:
    with pytest.raises(InputError, match=f"centre_weight is not supported by '{method}'"):
        complete(resolve("glyphs", {"method": method, "centre_weight": 0.1}))
