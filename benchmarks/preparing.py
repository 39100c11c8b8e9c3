"""Peak memory and time of preparing many photographs: a limit of 1.5 GiB for 100,000.

python benchmarks/preparing.py --images 100000 --out results/preparing.json
python benchmarks/preparing.py --images 32000 --parquet

A few hundred synthetic photographs of 500 x 375 pixels, under many names or in many rows, go through `ffcil data
prepare` in a separate process. The result is the largest resident memory of that process; its workers are threads.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
from pyarrow.parquet import ParquetWriter

from loading import draw_photographs
from result_file import write_result

LIMIT = 1.5
"""Allowed memory in GiB."""
DISTINCT = 200
CLASSES = 100
ROWS = 1000
"""Images per row group of the Parquet file."""
FFCIL = """
import atexit, shutil, sys
atexit.register(shutil.copy, "/proc/self/status", sys.argv.pop(1))
from ffcil.cli import main
main()
"""
"""The command line, which writes its memory to a file, because `ru_maxrss` of a child includes that of its parent."""


def make_tree(root: Path, images: int) -> Path:
    """One folder per class. A file has many names, and each name is decoded."""
    originals = root / "originals"
    originals.mkdir()
    draw_photographs(originals, DISTINCT)
    files = sorted(originals.iterdir())
    for k in range(images):
        folder = root / "classes" / f"{k % CLASSES:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        os.link(files[k % DISTINCT], folder / f"{k:06d}.jpg")
    return root / "classes"


def make_parquet(root: Path, images: int) -> Path:
    """One Parquet file with the bytes of every image, as large as if all were different."""
    originals = root / "originals"
    originals.mkdir()
    draw_photographs(originals, DISTINCT)
    contents = [path.read_bytes() for path in sorted(originals.iterdir())]
    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
    with ParquetWriter(root / "photographs.parquet", schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, images, ROWS):
            rows = range(start, min(start + ROWS, images))
            columns = [[contents[k % DISTINCT] for k in rows], [k % CLASSES for k in rows]]
            writer.write_table(pa.table(columns, schema))
    return root / "photographs.parquet"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--parquet", action="store_true", help="Use one Parquet file instead of image files.")
    parser.add_argument("--image-size", type=int, default=112, help="Image size; frames of the store are 8/7 of it.")
    parser.add_argument("--folder", type=Path, help="Folder of photographs and store (default: a temporary one).")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        data = (make_parquet if options.parquet else make_tree)(Path(folder), options.images)
        status = Path(folder) / "status"
        command = [sys.executable, "-c", FFCIL, str(status)]
        command += ["data", "prepare", str(data), "--image-size", str(options.image_size)]
        start = time.perf_counter()
        subprocess.run(command, check=True, env={**os.environ, "FFCIL_CACHE": f"{folder}/cache"})
        seconds = time.perf_counter() - start
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    peak = int(lines["VmHWM"].split()[0]) / 2**20  # from KiB
    measured = {
        "peak_gib": round(peak, 3),
        "limit_gib": LIMIT,
        "seconds": round(seconds, 1),
        "images_per_second": round(options.images / seconds, 1),
        "cores": os.cpu_count(),
    }
    print(json.dumps(measured, indent=2))
    if options.out:
        write_result(options.out, "cpu", measured, "glyphs")
    if peak > LIMIT:
        raise SystemExit(f"{peak:.2f} GiB are more than {LIMIT} GiB")


if __name__ == "__main__":
    main()
