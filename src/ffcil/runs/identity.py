"""Identity of a run and of its images."""

import hashlib
from pathlib import Path
from typing import Any

from ffcil.config.settings import RunConfig
from ffcil.data.sources import SOURCES
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
