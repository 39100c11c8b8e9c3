"""Anybody's `torch.utils.data.Dataset` in place of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset
from torchvision.datasets import FakeData

import ffcil
from conftest import small_config
from ffcil.data.pictures import image_set_of
from ffcil.errors import InputError
from ffcil.runs.run import Run


def test_any_torch_data_set(tmp_path: Path) -> None:
    images = torch.randint(0, 256, (20, 3, 16, 16), dtype=torch.uint8)
    labels = torch.arange(20) % 2
    made = image_set_of(TensorDataset(images, labels), 16)
    assert torch.equal(made.images, images)
    assert made.labels.tolist() == labels.tolist()
    assert made.class_names == ("0", "1")
    assert torch.equal(image_set_of(TensorDataset(images / 255, labels), 16).images, images)
    grey = image_set_of(TensorDataset(images[:, :1], labels), 16)
    assert torch.equal(grey.images, images[:, :1].expand(-1, 3, -1, -1))
    photographs = image_set_of(FakeData(3, (3, 150, 200), 2), 112)  # PIL images
    assert photographs.images.sizes.tolist() == [[128, 170]] * 3
    data = ffcil.dataset_of(TensorDataset(images, labels), TensorDataset(images[:4], labels[:4]), ["cat", "dog"], 16)
    config = small_config(dataset="mine", method="finetune", arrivals={"sizes": [1, 1]})
    summary = Run(config, tmp_path / "run", data=data, device="cpu", threads=1).execute()
    assert summary["dataset"] == "mine"


def test_items_may_have_further_values() -> None:
    """Avalanche gives a task label, too, Mammoth the image before augmentation. Labels of MedMNIST are arrays."""
    images = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    items = [(image, np.array([row % 2]), 0) for row, image in enumerate(images)]
    made = image_set_of(items, 16)  # type: ignore[arg-type]
    assert torch.equal(made.images, images)
    assert made.labels.tolist() == [0, 1, 0, 1, 0, 1]


class Named(list[tuple[torch.Tensor, int]]):
    """Items with the names of their classes."""

    def __init__(self, classes: list[str]) -> None:
        super().__init__((torch.zeros(3, 16, 16), label) for label in range(len(classes)))
        self.classes = classes


def test_a_class_has_the_same_number_in_both_parts() -> None:
    """The numbers of an `ImageFolder` whose test folder lacks a class are those of other classes in training."""
    with pytest.raises(InputError, match="Class 1 is 'b' in the training set and 'c' in the test set: number the"):
        ffcil.dataset_of(Named(["a", "b", "c"]), Named(["a", "c"]))  # type: ignore[arg-type]
    lacking = ffcil.dataset_of(Named(["a", "b", "c"]), Named(["a", "b"]))  # type: ignore[arg-type]
    assert lacking.test.class_names == ("a", "b", "c")
    unnamed = ffcil.dataset_of(Named(["a", "b"]), [(torch.zeros(3, 16, 16), 1)])  # type: ignore[arg-type]
    assert unnamed.test.class_names == ("a", "b")


@pytest.mark.parametrize(
    ("image", "label", "message"),
    [
        (torch.zeros(3, 8, 8), "cat", "Item 0 of the data set has the label 'cat': give whole numbers from 0, and the"),
        (torch.zeros(3, 8, 8), 0.5, "has the label 0.5: give whole numbers"),
        (torch.zeros(3, 8, 8), torch.eye(2)[0], r"has the label tensor\(\[1., 0.\]\): give whole numbers"),
        ("text", 0, "Item 0 of the data set has an image of type str"),
        (torch.zeros(4, 8, 8), 0, r"is a tensor \[4, 8, 8\]: give \[1 or 3"),
        (torch.full((3, 8, 8), -1.0), 0, r"not in \[0, 1\]: give uint8"),
        (torch.zeros(3, 8, 8), -1, "An image has label -1, but there are 1 classes"),
    ],
)
def test_invalid_torch_data_sets_are_an_error(image: object, label: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        image_set_of([(image, label)], 8, ["a"])  # type: ignore[arg-type]
    with pytest.raises(InputError, match="Item 0 of the data set is of type dict: give pairs of an image and a label"):
        image_set_of([{"image": image, "label": label}], 8)  # type: ignore[arg-type]


def test_images_of_a_torch_data_set_equal_those_of_files(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # held sideways
    Image.new("RGB", (200, 100)).save(tmp_path / "x.jpg", exif=exif)
    sideways = image_set_of([(Image.open(tmp_path / "x.jpg"), 0)], 112)  # type: ignore[arg-type]
    assert sideways.images.sizes.tolist() == [[256, 128]]  # type: ignore[union-attr]
    deep = Image.fromarray(np.full((50, 50), 100 * 256, np.uint16))
    assert image_set_of([(deep, 0)], 32).images.unique().tolist() == [100]  # type: ignore[arg-type, union-attr]
    with pytest.raises(InputError, match=r"Item 0 of the data set cannot be used \(its pixels are in 0.0 .. 2.0"):
        image_set_of([(Image.fromarray(np.array([[0, 2]], np.float32)), 0)], 32)  # type: ignore[arg-type]
