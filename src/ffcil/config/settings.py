"""The typed configuration of a run. It does not import torch, so that errors are reported without delay."""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PositiveInt, model_validator

from ffcil.config.arrivals import AnyArrivals
from ffcil.config.base import Settings
from ffcil.config.earlier import identity_term, renewed
from ffcil.config.flow import FLOW_PARTS, meaning_of_null

Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Phase(Settings):
    """Optimisation settings of one step."""

    epochs: PositiveInt
    """Number of epochs."""
    learning_rate: float = Field(0.1, gt=0)
    """Learning rate of the first epoch, or of the highest one if `schedule` is `one-cycle`."""
    schedule: Literal["milestones", "cosine", "one-cycle"] = "milestones"
    """Schedule of the learning rate: `milestones`; `cosine`, which ends at 0; `one-cycle`, which rises along a straight
    line in the first quarter of the epochs and then falls along another to 0."""
    milestones: tuple[PositiveInt, ...] = ()
    """Epochs at which the schedule `milestones` multiplies the learning rate by `decay`."""
    decay: float = Field(0.1, gt=0, le=1)
    """Factor on the learning rate at each milestone."""
    weight_decay: float = Field(5e-4, ge=0)
    """Weight decay of all trained parameters."""

    def lasting(self, batches: int, least: int) -> Self:
        """The same settings, prolonged to about `least` optimiser steps if there are fewer. An epoch has `batches`
        steps."""
        return self.scaled(max(1.0, least / (batches * self.epochs)))

    def scaled(self, factor: float) -> Self:
        """The same settings with epochs and milestones multiplied by `factor` (at least one epoch)."""
        epochs, *milestones = (max(1, round(epoch * factor)) for epoch in (self.epochs, *self.milestones))
        return self.model_copy(update={"epochs": epochs, "milestones": tuple(milestones)})


class TrainSettings(Settings):
    """Settings of the training loop."""

    batch: PositiveInt = 128
    """Batch size. The last batch of an epoch is filled with further random images."""
    momentum: float = Field(0.9, ge=0, lt=1)
    """Momentum of SGD."""
    augment: Literal["standard", "auto", "none"] = "standard"
    """Augmentation: `standard` for crop, flip and brightness; `auto` to add AutoAugment and Cutout; `none`."""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision: `auto` is bfloat16 autocast on a GPU and float32 on a CPU. Losses and heads are always float32. On a
    CPU, `bfloat16` is faster only if the CPU computes in it (AVX512-BF16, AMX)."""
    graph: bool = True
    """Whether to capture a training iteration as a CUDA graph (GPU only)."""
    compile: bool = True
    """Whether to compile the blocks of the backbone with torch.compile (GPU only), except in short runs."""
    batch_norm: Literal["synchronised", "local"] = "synchronised"
    """Statistics of batch norm on several devices: `synchronised` over the whole batch, as on one device, or `local`
    over the part of each device, which takes less time and gives other results."""
    epochs_scale: float = Field(1.0, gt=0, le=1000)
    """Factor on all epochs and milestones, for example 0.1 for a quick trial of a published schedule."""
    first: Phase
    """Optimisation of the first step."""
    later: Phase
    """Optimisation of all later steps."""

    def scaled(self) -> Self:
        """The same settings with `epochs_scale` applied."""
        first, later = (phase.scaled(self.epochs_scale) for phase in (self.first, self.later))
        return self.model_copy(update={"epochs_scale": 1.0, "first": first, "later": later})


class MemorySettings(Settings):
    """Number of exemplars: a total budget shared by all classes seen, or a constant number per class."""

    budget: PositiveInt | None = None
    """Total number of exemplars, shared equally by the classes seen."""
    per_class: PositiveInt | None = None
    """Number of exemplars per class, instead of a budget."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.budget is None) == (self.per_class is None):
            raise ValueError("set exactly one of budget and per_class (the other to null)")
        return self


class DiwaSettings(Settings):
    """Constants of Dynamic Intervention Weight Alignment, paper eq. (12). The paper does not give their values."""

    eta_min: float = Field(0.1, ge=0, le=1)
    """Strength of the alignment after a step with one new class."""
    tau: float = Field(5.0, gt=0)
    """Number of new classes over which the strength approaches 1."""


class HaSettings(Settings):
    """Head-Agnostic Alignment, for pre-trained methods. The only constant that the paper gives is `surrogates`."""

    use: bool | None = None
    """Whether to use HA; null: true if `framework` is `paper`, else false."""
    surrogates: int = Field(20, ge=0)
    """Number of features sampled per earlier class, paper eq. (15); 0 is an ablation of the paper."""
    identity: Annotated[Literal["sum", "mean", "none"], BeforeValidator(identity_term)] = "sum"
    """Penalty on the distance of aligned features from the original ones. `sum` is eq. (16) of the paper as printed:
    the squared distance, a sum over the features. `mean` divides it by the number of features, as a mean squared error
    does; eq. (16) may mean it. `none` is an ablation of the paper."""
    identity_weight: float = Field(1.0, gt=0)
    """Weight of the `identity` penalty. With `sum` and 1, as printed in the paper, features of a large norm hardly
    move."""
    bottleneck: PositiveInt = 64
    """Hidden size of the alignment network."""
    epochs: PositiveInt = 10
    """Number of epochs on the features of a step."""
    batch: PositiveInt = 128
    """Batch size, in features."""
    learning_rate: float = Field(1e-3, gt=0)
    """Learning rate of Adam."""
    guard: bool = False
    """Whether the HA of a step is kept only if it classifies held-out features better than the HA before: a tenth of
    the step's features, and surrogates of earlier classes that it was not trained on."""


class FlowSettings(Settings):
    """Parts of the framework `flow`. Each can be set separately, whatever `framework` is."""

    adjust: float | None = Field(
        None,
        ge=0,
        description="Strength tau of the count-aware cross-entropy, for methods that train from scratch. It is the "
        "cross-entropy of logits + tau * log(N_c / N), where N_c of the N training images of a step have class c. 1 is "
        f"the balanced softmax; 0 is the usual cross-entropy; {meaning_of_null('adjust')}",
    )
    growth: float | None = Field(
        None,
        ge=0,
        description="Number of new classes after which the network is trained again, as a share of the classes seen at "
        "its last training. Until so many have come, in one step or in several, a new class gets a row of the head, "
        "and the network stays as it is. For methods that train one network with exemplars; 0: every step trains; "
        f"{meaning_of_null('growth')}",
    )
    enough: PositiveInt | None = Field(
        None,
        description="Smallest number of new classes with which a step tunes a pre-trained backbone. The classes of a "
        f"smaller step are learned in the feature space of the latest step that tuned it; {meaning_of_null('enough')}",
    )
    share: float | None = Field(
        None,
        ge=0,
        description="Smallest number of new classes with which a step tunes the network of a method with a feature "
        "space per step, as a share of the classes seen before. The classes of a smaller step are learned in the "
        f"latest space; {meaning_of_null('share')}",
    )
    follow: bool | None = Field(
        None,
        description="Whether the means of old classes follow the network if later steps change their space. They move "
        "as features of the newest images do, by a linear map; null: true if `framework` is `flow`, else false.",
    )
    min_steps: PositiveInt | None = Field(
        None,
        description="Smallest number of optimiser steps for tuning a pre-trained backbone on one step of the stream. "
        f"If the epochs have fewer, epochs are added, to the nearest whole epoch; {meaning_of_null('min_steps')}",
    )
    comparable: bool | None = None
    """Whether scores from the feature spaces of different steps are standardised before they are compared (CL-LoRA and
    EASE); null: true if `framework` is `flow` and `whiten` is off. Whitened features have comparable cosines anyway."""
    shared_ridge: bool | None = None
    """Whether the held-out errors of all steps so far choose the ridge of an analytic head, again at every step (RanPAC
    and MoAL); null: true if `framework` is `flow`, else false."""
    whiten: bool | None = None
    """Whether features are compared with class means in the metric of their covariance within classes, which is summed
    over all images seen (SimpleCIL, APER, CL-LoRA and EASE); null: true if `framework` is `flow` and HA is off."""


class RunConfig(Settings):
    """The complete configuration of one run. The same configuration gives the same results."""

    dataset: str
    """Name of the data set; `ffcil data list` lists them."""
    method: str
    """Name of the method; `ffcil methods` lists them."""
    framework: Literal["none", "paper", "flow"] = "none"
    """Framework for free flow: `none` is the original method; `paper` is the class-wise mean with DIWA or, for
    pre-trained methods, with HA; `flow` is the mean without alignment or HA, and with the parts under `flow`. Each part
    can also be set separately."""
    reduction: Literal["auto", "mean", "class_wise_mean"] = "auto"
    """Reduction of per-sample losses; auto: class_wise_mean if `framework` is `paper`, else mean."""
    alignment: Literal["auto", "none", "wa", "diwa", "shrunk"] = "auto"
    """Alignment of the head after each step: `wa`, `diwa` of the paper, or `shrunk`, which is WA with less weight on
    the norms of a step with few classes and more on those of earlier steps. auto: diwa if `framework` is `paper`, none
    if it is `flow`, else that of the original method."""
    diwa: DiwaSettings = DiwaSettings()
    ha: HaSettings = HaSettings()
    flow: FlowSettings = FlowSettings()
    centre_weight: float = Field(0.0, ge=0)
    """Weight of the centre loss, paper eq. (8), for methods with a nearest-mean classifier and for pre-trained methods
    that train and score by cosines. Eq. (9) uses 1; 0 disables it."""
    arrivals: AnyArrivals = Field(discriminator="kind")
    class_seed: Seed | None = 0
    """Seed of the class permutation; null for the order of the data set."""
    arrival_seed: Seed = 0
    """Seed of the step sizes and their order."""
    train_seed: Seed = 0
    """Seed of the initialisation, the batches and the augmentation."""
    backbone: str
    """Backbone: resnet8 (small, for a CPU), resnet32, resnet18 (small images), resnet18-imagenet,
    resnet18-imagenet-3x3, or one that an imported file registers; for pre-trained methods the name and tag of a network
    of timm, a plain ViT for methods that tune it."""
    weights: str | None = None
    """Weights of a pre-trained backbone: a file, `hub` for the weights that timm publishes under this name, `embedded`
    for glyph_vit, or null for random weights."""
    normalise: Literal["weights", "data", "unit", "published"] | None = None
    """Normalisation of pixels: `weights` by mean and deviation in the training of the weights, which timm knows by the
    backbone's name and tag; `data` by those of the data set; `unit` to [0, 1] only; `published` as in the published
    methods, which is `unit` for pre-trained methods and `data` for all others. null: `weights` for pre-trained methods,
    else `published`."""
    image_size: PositiveInt | None = None
    """Side of the network's input in pixels; null: that of the data set's images, or, if these differ in size, 224 for
    published photographs and 64 for your own images."""
    memory: MemorySettings
    train: TrainSettings
    options: dict[str, Any] = Field(default={})
    """Fields of the method; `ffcil methods` lists them."""
    evaluate_batch: int = Field(1000, gt=0, le=1_000_000)
    """Batch size for computing features and predictions."""
    features: Literal["computed", "stored"] = "computed"
    """Where the features of a frozen network come from: `computed` in every run; `stored`: computed once for all runs,
    rounded to float16, in the cache folder. Steps then cost little more than their solve. A method that tunes the
    network cannot store them."""
    checkpoint_seconds: float = Field(30.0, ge=0)
    """Seconds between checkpoints, which are written at the end of an epoch; 0: after every epoch."""

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_versions(cls, settings: Any) -> Any:
        return renewed(settings) if isinstance(settings, Mapping) else settings

    def content(self) -> dict[str, Any]:
        """The fields that determine the records of a run, as JSON values."""
        return self.model_dump(mode="json", exclude={"checkpoint_seconds"})

    def identity(self) -> str:
        """Hash of the content, used as the name of the run's folder."""
        content = self.content()
        if self.framework != "flow" and self.flow == FlowSettings():
            # Earlier versions had `robust` and no flow. Their configurations are hashed in their form and keep their
            # hashes, so that a study or a run that they began is found again and not repeated.
            del content["flow"]
            content["robust"] = content.pop("framework") == "paper"
        # also in the form of earlier versions, for the same reason
        content["ha"]["identity"] = {"sum": True, "none": False}.get(self.ha.identity, self.ha.identity)
        if self.normalise == "published":
            content["normalise"] = "auto"
        if self.features == "computed":
            del content["features"]
        for name, part in FLOW_PARTS.items() if "flow" in content else ():
            used = self.framework == "flow" and self.method in part.methods
            if part.later and getattr(self.flow, name) is None and not used:
                del content["flow"][name]
        if not self.ha.guard:
            del content["ha"]["guard"]
        if self.train.batch_norm == "synchronised":
            del content["train"]["batch_norm"]
        if content["options"].get("hidden") == 0:  # AnyArrival without random features
            del content["options"]["hidden"]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]
