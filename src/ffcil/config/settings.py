"""The typed configuration of a run. No torch here: a typo is answered at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from ffcil.errors import InputError

Order = Literal["jumbled", "ascending", "descending"]
Seed = Annotated[int, Field(ge=0, lt=2**32)]


class Settings(BaseModel):
    """Base of every configuration: frozen, and a field that does not exist is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class DrawnArrivals(Settings):
    """What the schedules that are made, rather than given, have in common."""

    classes: PositiveInt | None = None
    """use this many classes of the data set; null: all"""
    steps: PositiveInt
    """into how many steps they are divided"""


class EqualArrivals(DrawnArrivals):
    """Every step brings the same number of classes (sizes differ by at most one)."""

    kind: Literal["equal"] = "equal"


class HalfArrivals(DrawnArrivals):
    """Half of the classes first, the rest in equal steps."""

    kind: Literal["half"] = "half"


class FreeFlowArrivals(DrawnArrivals):
    """A class-arrival spectrum of intensity alpha between two bounds, then an order."""

    kind: Literal["free-flow"] = "free-flow"
    smallest: PositiveInt = 1
    """fewest classes at a step"""
    largest: PositiveInt
    """most classes at a step"""
    alpha: float = 1.0
    """intensity: towards 0 equal steps, towards infinity only the two bounds"""
    order: Order = "jumbled"
    """jumbled, ascending or descending"""


class GivenArrivals(Settings):
    """Sizes as given."""

    kind: Literal["given"] = "given"
    sizes: tuple[PositiveInt, ...]
    """new classes of each step, for example [1,4,2]"""
    order: Order | Literal["given"] = "given"
    """given, jumbled, ascending or descending"""


class TraceArrivals(Settings):
    """A CSV of classes and the time at which each was first seen, grouped by a window."""

    kind: Literal["trace"] = "trace"
    trace: str
    """CSV file of classes and the times at which they were first seen"""
    window: str = Field("1d", coerce_numbers_to_str=True)
    """12h, 7d, or a number in the trace's own units"""


ArrivalsSettings = Annotated[
    EqualArrivals | HalfArrivals | FreeFlowArrivals | GivenArrivals | TraceArrivals, Field(discriminator="kind")
]
ARRIVALS: dict[str, type[Settings]] = {
    get_args(kind.model_fields["kind"].annotation)[0]: kind
    for kind in (EqualArrivals, HalfArrivals, FreeFlowArrivals, GivenArrivals, TraceArrivals)
}


class Phase(Settings):
    """Optimisation of one step."""

    epochs: PositiveInt
    """passes over the step's training set"""
    learning_rate: float = Field(0.1, gt=0)
    """at the first epoch"""
    schedule: Literal["milestones", "cosine"] = "milestones"
    """of the learning rate; cosine ends at 0"""
    milestones: tuple[PositiveInt, ...] = ()
    """epochs at which schedule `milestones` multiplies the learning rate by `decay`"""
    decay: float = Field(0.1, gt=0, le=1)
    """factor at each milestone"""
    weight_decay: float = Field(5e-4, ge=0)
    """on every trainable tensor"""

    def scaled(self, factor: float) -> Phase:
        """Epochs and milestones multiplied by `factor`, one epoch at least."""
        epochs, *milestones = (max(1, round(epoch * factor)) for epoch in (self.epochs, *self.milestones))
        return self.model_copy(update={"epochs": epochs, "milestones": tuple(milestones)})


class TrainSettings(Settings):
    """The training loop."""

    batch: PositiveInt = 128
    """images of a training step; an epoch's last batch is filled up by drawing again"""
    momentum: float = Field(0.9, ge=0, lt=1)
    """of SGD"""
    augment: Literal["standard", "auto", "none"] = "standard"
    """`standard`: the data set's usual crop, flip and brightness; `auto`: AutoAugment, Cutout too; `none`: neither"""
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    """`auto`: bfloat16 autocast on a GPU, float32 on a CPU; losses and heads are always float32"""
    graph: bool = True
    """capture a training step as one CUDA graph (a GPU only)"""
    compile: bool = True
    """torch.compile of the backbone (a GPU only)"""
    epochs_scale: float = Field(1.0, gt=0, le=1000)
    """multiplies epochs and milestones of both phases: 0.1 for a quick look at a published schedule"""
    first: Phase
    """the first step"""
    later: Phase
    """every step after it"""

    def scaled(self) -> TrainSettings:
        """With `epochs_scale` carried out."""
        first, later = (phase.scaled(self.epochs_scale) for phase in (self.first, self.later))
        return self.model_copy(update={"epochs_scale": 1.0, "first": first, "later": later})


class MemorySettings(Settings):
    """Exemplars: a total budget shared by all classes seen, or a constant number a class."""

    budget: PositiveInt | None = None
    """exemplars in all, shared equally by the classes seen"""
    per_class: PositiveInt | None = None
    """exemplars of each class, instead of a budget"""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.budget is None) == (self.per_class is None):
            raise ValueError("set exactly one of budget and per_class (the other to null)")
        return self


class DiwaSettings(Settings):
    """Constants of Dynamic Intervention Weight Alignment, paper eq. (12); the paper does not print their values."""

    eta_min: float = Field(0.1, ge=0, le=1)
    """strength of the alignment after a step of one class"""
    tau: float = Field(5.0, gt=0)
    """classes over which the strength approaches 1"""


class HaSettings(Settings):
    """Head-Agnostic Alignment, for pre-trained methods; the paper prints `surrogates` and no other constant."""

    use: bool | None = None
    """null: where `robust` is true"""
    surrogates: int = Field(20, ge=0)
    """features drawn of each earlier class, paper eq. (15); 0: none (the paper's ablation)"""
    identity: bool = True
    """hold aligned features near the features themselves, paper eq. (16); false: the paper's ablation"""
    identity_weight: float = Field(1.0, gt=0)
    """of that term; 1 is the paper's, under which features of a large norm hardly move"""
    bottleneck: PositiveInt = 64
    """width between its two layers"""
    epochs: PositiveInt = 10
    """passes over a step's features"""
    batch: PositiveInt = 128
    """features of a training step"""
    learning_rate: float = Field(1e-3, gt=0)
    """of Adam"""


class RunConfig(Settings):
    """One run, complete: the same configuration gives the same run."""

    dataset: str
    """`ffcil data list` has them"""
    method: str
    """`ffcil methods` lists them"""
    robust: bool = False
    """true: the paper's framework: class-wise mean, with DIWA or, for pre-trained methods, HA; each part can be set
    alone below"""
    reduction: Literal["auto", "mean", "class_wise_mean"] = "auto"
    """how per-sample losses become one number; auto: class_wise_mean where robust"""
    alignment: Literal["auto", "none", "wa", "diwa"] = "auto"
    """of the head after a step; auto: diwa where robust, else the method's own"""
    diwa: DiwaSettings = DiwaSettings()
    ha: HaSettings = HaSettings()
    centre_weight: float = Field(0.0, ge=0)
    """of the centre loss, for methods with a nearest-mean classifier, paper eq. (8); 1 in eq. (9), 0: none"""
    arrivals: ArrivalsSettings
    class_seed: Seed | None = 0
    """of the class permutation; null: the data set's own order"""
    arrival_seed: Seed = 0
    """of the spectrum and its order"""
    train_seed: Seed = 0
    """of initialisation, batches and augmentation"""
    backbone: str
    """resnet8 (small, for a CPU), resnet32, resnet18 (small images), resnet18-imagenet, resnet18-imagenet-3x3; for
    pre-trained methods a ViT of timm's by name and tag"""
    weights: str | None = None
    """of a pre-trained backbone: a file, `hub` for those that timm publishes under its name, `embedded` for those of
    glyph_vit; null: random"""
    normalise: Literal["auto", "data", "unit", "weights"] = "auto"
    """of pixels: by the data set's mean and deviation; to [0, 1] alone; as the weights' own training did; auto: `data`,
    and `unit` for pre-trained methods, as the published ones"""
    image_size: PositiveInt | None = None
    """side of the network's input; null: that of the data set's images, else 224 for published photographs and 64 for
    one's own images"""
    memory: MemorySettings
    train: TrainSettings
    options: dict[str, Any] = {}
    """the method's own fields: `ffcil methods` lists them"""
    evaluate_batch: int = Field(1000, gt=0, le=1_000_000)
    """images at a time when features and predictions are computed"""
    checkpoint_seconds: float = Field(30.0, ge=0)
    """write a checkpoint at the first epoch's end after this many seconds; 0: after every epoch"""

    def content(self) -> dict[str, Any]:
        """The fields that a run's records depend on, as JSON values."""
        return self.model_dump(mode="json", exclude={"checkpoint_seconds"})

    def identity(self) -> str:
        """A hash of the content: the name of the run's folder."""
        canonical = json.dumps(self.content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    parts = list(first["loc"])
    if parts[:1] == ["arrivals"]:
        del parts[1:2]  # the kind, which pydantic puts there
    place = ".".join(map(str, parts))
    message = first["msg"].removeprefix("Value error, ").removesuffix(".")
    given = "" if isinstance(first["input"], Mapping | BaseModel) else f", not {first['input']!r}"
    return f"Bad value for {place or 'the configuration'}: {message}{given}."


Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], settings: Mapping[str, Any]) -> Model:
    """`settings` as `model`, or an `InputError` of one sentence."""
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        raise InputError(_sentence(error)) from error
