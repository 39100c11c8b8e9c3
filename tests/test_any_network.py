"""Networks of timm other than plain ViTs, compared with timm; and pixels as the weights were trained."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.data import resolve_data_config
from torch import Tensor

from conftest import AUGMENTATION, Make, coloured_images, seeded, small_config, small_stream, write_colours
from ffcil.classifier.classifier import Classifier
from ffcil.classifier.teaching import teach
from ffcil.classifier.versions import MODEL
from ffcil.config.resolve import resolve
from ffcil.data.image_set import ImageSet
from ffcil.data.sources import load_dataset
from ffcil.errors import InputError
from ffcil.methods import METHODS, build_learner, complete
from ffcil.methods.learner import Learner
from ffcil.methods.pretrained import Pretrained
from ffcil.models.network import FeatureNetwork
from ffcil.models.pretrained import build_network, normalisation_of_weights
from ffcil.runs.checkpoint import load_state, save_state
from ffcil.runs.folder import RunFolder
from ffcil.runs.run import Run, augmentation_of
from ffcil.training.engine import Engine
from test_classifier import config_of, parts

FAMILIES = {
    "convnext_atto": 64,
    "vit_small_patch16_dinov3": 64,
    "vit_small_patch14_dinov2": 56,
    "eva02_tiny_patch14_224": 56,
    "vit_xsmall_patch16_clip_224": 64,
    "vit_pe_core_tiny_patch16_384": 64,  # an image tower with attention pooling, as SigLIP
    "test_vit3": 64,  # attention pooling of the patch tokens alone, as SigLIP
    "vit_dlittle_patch16_reg1_gap_256": 64,  # an attention that LoRA does not support
    "mobilenetv3_small_050": 64,  # a layer between pooling and classifier
    "mobilenetv4_conv_small_035": 64,
    "test_efficientnet": 64,
    "test_resnet": 64,
    "regnetx_002": 64,
    "mobilevit_xxs": 64,
}
"""Networks, and a size of images in pixels."""


def learner_of(name: str, **overrides: Any) -> Learner:
    """A learner whose images are normalised as in a run."""
    config = small_config(**{"method": "simplecil", "backbone": name, "weights": None, **overrides})
    return build_learner(config, augmentation_of(config, AUGMENTATION), Engine.create("cpu", config.train))


def as_timm_has_it(learner: Any, images: Tensor) -> tuple[Any, Tensor]:
    """timm's own network with the same weights, and its input by timm's own settings."""
    theirs = timm.create_model(learner.settings.backbone, num_classes=0, **_flexible(learner.network)).eval()
    theirs.load_state_dict(learner.network.net.state_dict())
    settings = resolve_data_config(model=theirs)
    mean, std = (torch.tensor(settings[key]).view(3, 1, 1) for key in ("mean", "std"))
    return theirs, (images / 255 - mean) / std


def _flexible(network: FeatureNetwork) -> dict[str, bool]:
    return {"dynamic_img_size": True} if hasattr(network.net, "patch_embed") else {}


@pytest.mark.parametrize(
    ("name", "size"), [*FAMILIES.items(), pytest.param("swin_s3_tiny_224", 224, marks=pytest.mark.slow)]
)
def test_features_equal_those_of_timm(name: str, size: int) -> None:
    learner: Any = learner_of(name)
    images = torch.randint(0, 256, (2, 3, size, size), generator=seeded(), dtype=torch.uint8)
    with torch.no_grad():
        (ours,) = learner.over(images, torch.arange(2), learner.features)
        (deep,) = learner.over(images, torch.arange(2), lambda batch: learner.deep_features(batch, 2))
        theirs, normalised = as_timm_has_it(learner, images)
        expected = theirs.forward_head(theirs.forward_features(normalised), pre_logits=True)
        maps = theirs.forward_intermediates(normalised, indices=2, intermediates_only=True)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)
    assert ours.shape == (2, learner.feature_dim)
    means = [values.mean(dim=(2, 3)) for values in maps]
    parts = [(m - m.mean(1, keepdim=True)) / m.var(1, correction=0, keepdim=True).add(1e-5).sqrt() for m in means]
    torch.testing.assert_close(deep, torch.cat([expected, *parts], dim=1), rtol=1e-3, atol=1e-3)
    assert deep.shape == (2, learner.network.deep_dim(2))
    assert learner.network.deep_dim(0) == learner.feature_dim


def test_deep_features_that_a_network_does_not_have() -> None:
    network = build_network("test_nfnet", None)
    x = torch.rand(1, 3, 64, 64)
    assert torch.equal(network.deep(x, 0), network(x))
    with pytest.raises(InputError, match="NormFreeNet of timm has 0 blocks or stages that can be read, not 1"):
        network.deep(x, 1)
    with pytest.raises(InputError, match="has 4 blocks or stages that can be read, not 5"):
        build_network("test_convnext", None).deep_dim(5)


@pytest.mark.parametrize("name", ["test_convnext", "mobilenetv3_small_050", "eva02_tiny_patch14_224"])
def test_weights_from_a_file(tmp_path: Path, name: str) -> None:
    """Also with a classifier in the file, and in half precision."""
    theirs = timm.create_model(name, num_classes=10)
    file = tmp_path / "w.safetensors"
    save_file(
        {key: value.half() if value.is_floating_point() else value for key, value in theirs.state_dict().items()}, file
    )
    network = build_network(name, str(file))
    for key, value in network.net.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[key].half().to(value.dtype)), key
    assert len(network.fingerprint()) == 64
    with pytest.raises(InputError, match=r"do not fit 'test_resnet': conv1.* is missing"):
        build_network("test_resnet", str(file))
    (tmp_path / "w.npz").touch()
    with pytest.raises(InputError, match=f"'{name}' is not a ViT and has no .npz file"):
        build_network(name, str(tmp_path / "w.npz"))


def test_a_run_equals_nearest_class_means_of_timm(tmp_path: Path) -> None:
    """On the embedded images, with normalised pixels, from a file of weights."""
    name, classes = "test_convnext", 8
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=0).eval()
    save_file(theirs.state_dict(), tmp_path / "w.safetensors")
    fields = {"backbone": name, "weights": str(tmp_path / "w.safetensors"), "class_seed": None}
    config = small_config(method="simplecil", arrivals={"sizes": [1, 2, 5]}, **fields)
    Run(config, tmp_path / "run", device="cpu", threads=1).execute()

    def features(images: ImageSet) -> tuple[Tensor, Tensor]:
        rows = (images.labels < classes).nonzero().flatten()
        settings = resolve_data_config(model=theirs)
        mean, std = (torch.tensor(settings[key]).view(3, 1, 1) for key in ("mean", "std"))
        with torch.no_grad():
            return theirs((images.images[rows] / 255 - mean) / std), images.labels[rows]

    data: Any = load_dataset("glyphs", None)
    values, labels = features(data.train)
    means = torch.stack([values[labels == k].mean(dim=0) for k in range(classes)])
    values, labels = features(data.test)
    predicted = torch.cosine_similarity(values[:, None], means, dim=2).argmax(dim=1)
    expected = torch.zeros(classes, classes)
    expected.index_put_((labels, predicted), torch.tensor(1.0), accumulate=True)
    ours = torch.as_tensor(RunFolder(tmp_path / "run").counts(3)["prototype"].dense())
    assert (ours - expected).abs().sum() <= 4  # two images may be near ties
    assert len(predicted.unique()) == classes


@pytest.mark.parametrize("method", ["simplecil", "fecam", "ranpac"])
def test_methods_that_only_read_features(make_learner: Make, method: str) -> None:
    """Also where the first steps have fewer classes than a tuning needs."""
    options = {"simplecil": {}, "fecam": {"rank": 0}, "ranpac": {"rank": 0, "hidden": 50}}[method]
    flow = {} if method == "simplecil" else {"enough": 3}
    learner = make_learner(
        method=method, backbone="test_resnet", weights=None, options=options, framework="paper", flow=flow
    )
    for increment in small_stream([1, 2, 5]):
        notes = learner.learn(increment)
        assert notes["trained_parameters"] == 0
    (predicted,) = learner.predictions(increment).values()
    assert (predicted == increment.test.labels).double().mean() > 0.5


@pytest.mark.parametrize("method", ["fecam", "ranpac"])
def test_rank_0_leaves_a_vit_untuned(make_learner: Make, method: str) -> None:
    learner, plain = make_learner(method=method, options={"rank": 0}), make_learner(method="simplecil")
    (increment,) = small_stream([3])
    learner.learn(increment)
    images = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(learner.features(images), plain.features(images))
    assert not any(parameter.requires_grad for parameter in learner.parameters())


def test_refusals(make_learner: Make) -> None:
    anything = sorted(n for n, m in METHODS.items() if issubclass(m, Pretrained) and m.any_network)
    assert {"fecam", "ranpac", "simplecil"} <= set(anything)
    for method in ("aper", "ease", "mos", "tuna", "cllora", "moal"):
        with pytest.raises(InputError) as caught:
            make_learner(method=method, backbone="test_convnext", weights=None)
        assert str(caught.value) == (
            "Backbone 'test_convnext' is not a plain ViT (timm builds it as ConvNeXt), and "
            f"{METHODS[method].title} tunes it: choose a plain ViT, such as vit_base_patch16_224, or a method that "
            f"takes any network ({', '.join(anything)})."
        )
    with pytest.raises(InputError, match=r"and RanPAC tunes it: set options.rank=0 to read its features"):
        make_learner(method="ranpac", backbone="test_convnext", weights=None)
    with pytest.raises(InputError, match="rank"):
        complete(small_config(method="ease", options={"rank": 0}))
    with pytest.raises(InputError, match="needs a pre-trained network, not 'resnet18'"):
        complete(small_config(method="simplecil", backbone="resnet18"))
    assert complete(small_config(method="simplecil", backbone="resnet18.a1_in1k")).normalise == "weights"


@pytest.mark.parametrize(
    ("name", "size", "usual"),
    [("swin_s3_tiny_224", 32, 224), ("inception_v4", 64, 299), ("vit_tiny_patch16_224", 40, 224)],
)
def test_images_of_a_size_that_a_network_does_not_take(name: str, size: int, usual: int) -> None:
    learner: Any = learner_of(name)
    with torch.no_grad(), pytest.raises(InputError) as caught:
        learner.features(torch.rand(1, 3, size, size))
    assert str(caught.value).startswith(f"Backbone {name!r} does not take images of {size} x {size} pixels (")
    assert str(caught.value).endswith(f"): set image_size, for example to {usual}.")


# --- pixels as the weights were trained ----------------------------------------------------------------------------


def test_normalisation_of_weights() -> None:
    """The tag determines it."""
    assert normalisation_of_weights("vit_tiny_patch16_224.augreg_in21k_ft_in1k") == ((0.5,) * 3, (0.5,) * 3)
    assert normalisation_of_weights("vit_tiny_patch16_224") == ((0.5,) * 3, (0.5,) * 3)
    assert normalisation_of_weights("vit_base_patch16_224.mae")[0] == (0.485, 0.456, 0.406)
    assert normalisation_of_weights("vit_base_patch16_clip_224.openai")[1][0] == 0.26862954
    with pytest.raises(InputError, match="did you mean 'vit_tiny_patch16_224'"):
        normalisation_of_weights("vit_tinny_patch16_224")
    with pytest.raises(InputError, match=r"did you mean 'vit_tiny_patch16_224\.augreg_in21k'"):
        normalisation_of_weights("vit_tiny_patch16_224.augreg_in21")
    with pytest.raises(InputError, match="timm has renamed 'vit_base_patch16_224_in21k'"):
        normalisation_of_weights("vit_base_patch16_224_in21k")


@pytest.mark.parametrize(
    ("recipe", "fields", "identity"),
    [
        ("cars-vit-tiny", {"method": "tuna"}, "c9ce190c098f"),
        ("cars-vit-tiny", {"method": "ranpac", "framework": "flow"}, "f63730f27d65"),
        ("cars-vit-tiny", {"method": "simplecil", "normalise": "weights"}, "929d5e90798e"),
        ("cars-vit-tiny", {"method": "simplecil", "normalise": None}, "929d5e90798e"),
        ("cars", {"method": "fecam"}, "f847e68a1565"),
        ("cifar100-vit", {"method": "moal"}, "267bc3828686"),
        ("imagenet-r", {"method": "cllora"}, "6eefa56a2045"),
        ("imagenet-a", {}, "373dd5129ce9"),
        ("cub200", {}, "ba12f5bab56e"),
        ("cifar100", {"method": "icarl"}, "12a6b2c94f91"),
        ("own-images", {"method": "ranpac", "normalise": "auto"}, "5d0e4d69b9f2"),
        ("own-images", {"method": "ranpac", "normalise": "published"}, "5d0e4d69b9f2"),
    ],
)
def test_runs_of_the_version_with_auto_keep_their_identity(recipe: str, fields: dict[str, Any], identity: str) -> None:
    """That version computed the literals. It scaled pixels to [0, 1] where these recipes say `published`."""
    assert complete(resolve(recipe, fields)).identity() == identity


class AnyNameIsUnknown:
    """A machine without internet: no name is known, and the hub's library must not be asked for weights."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        self.built: list[bool] = []
        """Whether each network of timm was to be pre-trained."""
        monkeypatch.setattr("socket.getaddrinfo", self.look_up)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
        monkeypatch.setattr("timm.create_model", self.create)
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)

    def look_up(self, *_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    def create(self, *_: Any, pretrained: bool, **__: Any) -> None:
        self.built.append(pretrained)
        raise OSError("We couldn't connect to the hub.\nCheck your connection.")


def test_weights_that_cannot_be_downloaded_are_one_sentence_with_three_ways_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offline = AnyNameIsUnknown(monkeypatch, tmp_path)
    with pytest.raises(
        InputError, match=r"service not known\): connect .* weights=FILE.* own-images-offline"
    ) as caught:
        build_network("vit_tiny_patch16_224", "hub")
    assert "\n" not in str(caught.value)
    assert not offline.built  # its library would ask the hub for a minute
    monkeypatch.setenv("https_proxy", "http://localhost:9")  # a proxy may know the name
    with pytest.raises(InputError, match=r"couldn't connect to the hub\): connect .* weights=FILE"):
        build_network("vit_tiny_patch16_224", "hub")
    assert offline.built == [True]


def test_downloaded_weights_need_no_internet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    repository = tmp_path / f"models--timm--{name}"
    for file, content in (("refs/main", "abc"), ("snapshots/abc/model.safetensors", "weights")):
        (repository / file).parent.mkdir(parents=True)
        (repository / file).write_text(content)
    offline = AnyNameIsUnknown(monkeypatch, tmp_path)
    with pytest.raises(InputError, match="couldn't connect"):
        build_network(name, "hub")
    assert offline.built == [True]  # the library finds them by itself


def test_own_images_without_a_download(tmp_path: Path) -> None:
    folder = write_colours(tmp_path / "photos", classes=3)
    classifier, _ = teach(tmp_path / "model", [folder], resolve("own-images-offline"), device="cpu")
    assert classifier.test(folder)["accuracy"] > 90


def test_the_default_of_own_images() -> None:
    assert complete(resolve("own-images")).normalise == "weights"
    assert complete(resolve("glyphs", {"method": "icarl"})).normalise == "published"


def test_a_configuration_with_auto_means_published(tmp_path: Path) -> None:
    earlier = resolve("own-images").model_dump(mode="json") | {"normalise": "auto"}
    for name, content in (("config.json", earlier), ("a.run.json", {"config": earlier, "records": []})):
        (tmp_path / name).write_text(json.dumps(content))
        assert resolve(str(tmp_path / name)).normalise == "published"


def test_a_run_with_auto_goes_on(tmp_path: Path) -> None:
    config = small_config(method="simplecil", backbone="test_vit", weights=None, arrivals={"sizes": [1, 1]})
    earlier = config.model_copy(update={"normalise": "published"})
    Run(earlier, tmp_path, device="cpu", threads=1).execute()
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["normalise"] == "published"
    (tmp_path / "config.json").write_text(json.dumps({**stored, "normalise": "auto"}))
    Run(earlier, tmp_path, device="cpu", threads=1).execute()
    with pytest.raises(InputError, match=r"another configuration \(it differs in normalise\)"):
        Run(config, tmp_path, device="cpu", threads=1).execute()


def test_a_classifier_with_auto_goes_on(tmp_path: Path) -> None:
    """It keeps pixels in [0, 1]. A new one has them as the weights were trained: with 0.5 and 0.5."""
    first, second, _ = parts(coloured_images([6] * 6, 1))
    config = config_of(method="simplecil", backbone="test_vit", weights=None)
    teach(tmp_path, [first], config, device="cpu")
    state = load_state(tmp_path / MODEL, "")
    assert state["config"]["normalise"] == "weights"
    assert Classifier.load(tmp_path, "cpu").learner.settings.augmentation.mean == (0.5, 0.5, 0.5)
    save_state(tmp_path / MODEL, {**state, "config": {**state["config"], "normalise": "auto"}})
    teach(tmp_path, [second], device="cpu")
    assert Classifier.load(tmp_path, "cpu").learner.settings.augmentation.mean == (0, 0, 0)
