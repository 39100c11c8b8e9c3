"""The identity of a run: its name, the fingerprint of its images, and the identity that checkpoints store."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ffcil.config.settings import RunConfig
from ffcil.data.own_images import TEST, TRAIN
from ffcil.data.sources import SOURCES
from ffcil.methods import complete
from ffcil.runs.folder import differing_fields
from ffcil.stream import Stream


def identity(config: RunConfig, data: object) -> str:
    """Name of a run: the hash of its configuration and, for the user's own images, of their location."""
    source = SOURCES.get(config.dataset)
    if not isinstance(data, Path) or source is None or source.classes is not None:
        return config.identity()
    return f"{config.identity()}-{hashlib.sha256(str(data.resolve()).encode()).hexdigest()[:6]}"


def fingerprint(stream: Stream) -> dict[str, Any]:
    """Classes, image counts and a hash of sampled pixels, which together distinguish sets of images."""
    sample = hashlib.sha256()
    for split in (stream.train, stream.test):
        sample.update(split.sample())
    return {
        "classes": list(stream.train.class_names),
        "train_images": stream.train.counts().tolist(),
        "test_images": stream.test.counts().tolist(),
        "image_size": list(stream.train.image_size),
        "sample": sample.hexdigest(),
    }


def images_may_differ(dataset: str, data: Path, stored: Mapping[str, Any]) -> bool:
    """Whether the number of the user's own files in some class differs from a stored fingerprint. The files are not
    read. If they are gone, the answer is no."""
    list_images = SOURCES[dataset].list_images
    if SOURCES[dataset].classes is not None or list_images is None or not data.exists():
        return False
    listing = list_images(data)
    counts = [listing.counts(part).tolist() for part in (TRAIN, TEST)]
    return [list(listing.class_names), *counts] != [stored[k] for k in ("classes", "train_images", "test_images")]


@dataclass(frozen=True)
class RunIdentity:
    """Configuration, schedule and images of a run. A checkpoint can only be used by a run with the same identity."""

    config: RunConfig
    schedule: str
    """Digest of the schedule."""
    images: str
    """Digest of the fingerprint of the images."""

    @classmethod
    def of(cls, config: RunConfig, schedule: dict[str, Any], images: dict[str, Any]) -> Self:
        return cls(config, _digest(schedule), _digest(images))

    def to_json(self) -> dict[str, Any]:
        return {"config": self.config.content(), "schedule": self.schedule, "images": self.images}

    def differing(self, stored: dict[str, Any] | None) -> list[str]:
        """Names of the fields and parts that differ from a stored identity. Checkpoints of earlier versions have no
        identity, and nothing differs then."""
        if stored is None:
            return []
        others = [name for name in ("schedule", "images") if stored[name] != getattr(self, name)]
        return [*differing_fields(stored["config"], self.config, complete), *others]


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
