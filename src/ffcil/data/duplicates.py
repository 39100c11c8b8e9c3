"""Images that occur more than once in a data set, where that makes an accuracy wrong."""

from collections.abc import Hashable, Sequence

import numpy as np

from ffcil.data.own_images import TEST, TRAIN, UNUSED, Listing

Pair = tuple[str, str]
"""Names of two images with the same pixels."""


def images_in_both_parts(listing: Listing, pixels: Sequence[Hashable]) -> list[Pair]:
    """Each test image that is also a training image, beside the first such training image.

    `pixels` has one value per used image of the listing, and images with equal values are the same."""
    used = np.flatnonzero(listing.parts != UNUSED).tolist()
    training: dict[Hashable, int] = {}
    for position, value in zip(used, pixels, strict=True):
        if listing.parts[position] == TRAIN:
            training.setdefault(value, position)
    return [
        (listing.names[position], listing.names[training[value]])
        for position, value in zip(used, pixels, strict=True)
        if listing.parts[position] == TEST and value in training
    ]


def images_in_two_classes(listing: Listing, pixels: Sequence[Hashable]) -> list[Pair]:
    """Each image whose first occurrence has another class, beside that first occurrence."""
    first: dict[Hashable, int] = {}
    pairs = []
    for position, value in zip(np.flatnonzero(listing.parts != UNUSED).tolist(), pixels, strict=True):
        if listing.labels[first.setdefault(value, position)] != listing.labels[position]:
            pairs.append((listing.names[position], listing.names[first[value]]))
    return pairs
