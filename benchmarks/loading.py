"""Training images per second at 224 x 224: from the store on the device, and through torchvision and a DataLoader.

python benchmarks/loading.py --device cuda --workers 8 --out results/loading.json
python benchmarks/loading.py --device cpu --workers 2 --threads 2

Both crop the same photographs at random sizes, flip half of them, and give float32 batches in [0, 1] on the device.
The DataLoader decodes the images in every epoch, as usual. The store decodes them once, which is timed separately. One
process measures both in turns; the result is the median of the turns. On a GPU the store is measured as in training: as
a captured graph that reads new random numbers at every replay, with the store in GPU memory and then in pinned host
memory, as for stores that do not fit. Without --data, synthetic photographs of 500 x 375 pixels are used.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

from ffcil.config.resolve import resolve
from ffcil.data.augment import Augmentation, Draws
from ffcil.data.cache import cached_folder
from ffcil.data.own_images import TRAIN, Listing, own_augmentation, stratified
from ffcil.data.placement import place
from ffcil.data.ragged import Images, RaggedImages, image_sizes
from ffcil.data.tables import list_parquet
from ffcil.training.engine import Engine
from result_file import write_result

SIZE = 224
WARM_UP = 3
MADE_UP = 4000  # photographs


class Photographs(Dataset[Tensor]):
    """Encoded images in memory, which are decoded and augmented one by one."""

    def __init__(self, encoded: list[bytes], augmentation: Augmentation) -> None:
        crop = augmentation.crop
        assert crop is not None
        self.encoded = encoded
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(crop.size, crop.scale, crop.ratio),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
            ]
        )

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, row: int) -> Tensor:
        result: Tensor = self.transform(Image.open(BytesIO(self.encoded[row])).convert("RGB"))
        return result


def finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def through_loader(loader: DataLoader[Tensor], batches: int, device: torch.device) -> float:
    """Images per second of the DataLoader, without the start of its workers."""
    images, start = 0, 0.0
    for k, batch in enumerate(loader):
        batch.to(device, non_blocking=True)
        if k == WARM_UP:
            finish(device)
            start = time.perf_counter()
        elif k > WARM_UP:
            images += len(batch)
        if k == WARM_UP + batches:
            break
    finish(device)
    return images / (time.perf_counter() - start)


def step_of(augmentation: Augmentation, store: Images, rows: Tensor, draws: Draws) -> Callable[[], object]:
    """Function that makes one batch from the buffers `rows` and `draws`; on a GPU a captured graph."""

    def step() -> Tensor:
        return augmentation.train(store, rows, draws)

    if rows.device.type != "cuda":
        return step
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


class FromStore:
    """Batches of the store, including their random numbers."""

    def __init__(self, store: Images, augmentation: Augmentation, batch: int) -> None:
        self.sizes, self.augmentation, self.batch = image_sizes(store).cpu(), augmentation, batch
        self.generator, self.device = torch.Generator().manual_seed(0), store.device
        rows, draws = self.drawn(1)
        self.rows, self.draws = rows.to(self.device), Draws(*(part.to(self.device) for part in draws))
        self.store = store  # a captured graph does not keep alive what it reads
        self.step = step_of(augmentation, store, self.rows, self.draws)

    def drawn(self, batches: int) -> tuple[Tensor, Draws]:
        n = batches * self.batch
        rows = torch.randint(0, len(self.sizes), (n,), generator=self.generator)
        return rows, self.augmentation.draw(n, self.generator, self.sizes[rows])

    def measure(self, batches: int) -> float:
        """Images per second; all random numbers are drawn first, as in an epoch."""
        self.step()
        finish(self.device)
        start = time.perf_counter()
        rows, draws = self.drawn(batches)
        all_rows = rows.to(self.device).split(self.batch)
        all_draws = [part.to(self.device).split(self.batch) for part in draws]
        for k in range(batches):
            self.rows.copy_(all_rows[k])
            for buffer, parts in zip(self.draws, all_draws, strict=True):
                buffer.copy_(parts[k])
            self.step()
        finish(self.device)
        return batches * self.batch / (time.perf_counter() - start)


def made_up(count: int) -> Listing:
    """Listing of synthetic photographs, which take about as long to decode as real ones."""
    folder = cached_folder("made-up-photographs", lambda draft: draw_photographs(draft, count))
    paths = sorted(folder.glob("*.jpg"))
    labels = np.arange(len(paths)) % 10
    return Listing.of_files(paths, labels, stratified(labels, 10), tuple(map(str, range(10))))


def draw_photographs(folder: Path, count: int) -> None:
    generator = np.random.default_rng(0)
    for k in range(count):
        shapes = Image.fromarray(generator.integers(0, 256, (12, 16, 3), np.uint8)).resize((500, 375), Image.BICUBIC)
        grain = Image.fromarray(generator.integers(0, 256, (188, 250, 3), np.uint8)).resize((500, 375))
        Image.blend(shapes, grain, 0.15).save(folder / f"{k:05d}.jpg", quality=90)


def encoded_images(listing: Listing, count: int) -> list[bytes]:
    """The first training images, encoded as in their files."""
    found: list[bytes] = []
    for image in listing.encoded():
        if image.part == TRAIN:
            found.append(image.content if isinstance(image.content, bytes) else image.content.read_bytes())
        if len(found) == count:
            break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="Parquet file or folder of such files (default: synthetic images).")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--batches", type=int, default=16, help="Batches per turn of the DataLoader.")
    parser.add_argument("--store-batches", type=int, help="Batches per turn of the store (default: the same).")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, help="Threads of torch in this process (default: torch's default).")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    engine = Engine.create(options.device, resolve("cifar100").train)
    listing = list_parquet(options.data) if options.data else made_up(MADE_UP)
    start = time.perf_counter()
    train, _ = listing.load(SIZE)
    prepared = time.perf_counter() - start
    augmentation = replace(own_augmentation(SIZE), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    assert isinstance(train.images, RaggedImages)
    stores = {"store": FromStore(train.images.to(engine.device), augmentation, options.batch)}
    if engine.device.type == "cuda":
        pixels = place(train.images.pixels, engine.device, room=0)
        on_host = RaggedImages(pixels, train.images.offsets.to(engine.device), train.images.sizes.to(engine.device))
        stores["store_on_host"] = FromStore(on_host, augmentation, options.batch)
    encoded = encoded_images(listing, (WARM_UP + 1 + options.batches) * options.batch)
    loader = DataLoader(
        Photographs(encoded, augmentation),
        options.batch,
        shuffle=True,
        num_workers=options.workers,
        pin_memory=engine.device.type == "cuda",
    )
    batches = min(options.batches, len(loader) - WARM_UP - 1)
    turns: dict[str, list[float]] = {"data_loader": [], **{name: [] for name in stores}}
    for _ in range(options.turns):
        turns["data_loader"].append(through_loader(loader, batches, engine.device))
        for name, store in stores.items():
            turns[name].append(store.measure(options.store_batches or options.batches))
    middle: dict[str, Any] = {name: statistics.median(speeds) for name, speeds in turns.items()}
    ratios = [ours / theirs for ours, theirs in zip(turns["store"], turns["data_loader"], strict=True)]
    measured = {
        "images": len(listing.names),
        "seconds_to_load_or_prepare": prepared,
        "images_per_second": {**middle, "ratio": statistics.median(ratios)},
        "turns": turns,
    }
    print(json.dumps(measured, indent=2))
    if options.out:
        write_result(options.out, options.device, measured)


if __name__ == "__main__":
    main()
