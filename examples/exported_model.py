"""A classifier of `ffcil export MODEL --to model.onnx`, used without ffcil: onnxruntime, numpy and Pillow only.

python examples/exported_model.py model.onnx photo.jpg ...
"""

import json
import sys

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def prepare(path: str, size: int, short_side: int | None) -> np.ndarray:
    """The pixels of a photo as the model expects them: uint8 [size, size, 3]."""
    image = ImageOps.exif_transpose(Image.open(path))
    if image.mode.startswith("I"):  # 16 bits per pixel, which Pillow would clip
        image = Image.fromarray((np.asarray(image) // 256).astype(np.uint8))
    image = image.convert("RGB")
    if short_side is None:  # models for images smaller than 96 pixels
        return np.asarray(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR))
    image = image.resize([short_side * side // min(image.size) for side in image.size], Image.Resampling.BICUBIC)
    left, top = (round((side - size) / 2) for side in image.size)
    return np.asarray(image.crop((left, top, left + size, top + size)))


if __name__ == "__main__":
    model, *photos = sys.argv[1:]
    session = onnxruntime.InferenceSession(model)
    about = json.loads(session.get_modelmeta().custom_metadata_map["ffcil"])
    images = np.stack([prepare(photo, about["size"], about["short_side"]) for photo in photos])
    scores, *novelty = session.run(None, {"images": images})
    for row, photo in enumerate(photos):
        best, limit = scores[row].argmax(), about["novelty_limit"]
        unknown = limit is not None and novelty[0][row] > limit
        print(photo, "unknown" if unknown else about["classes"][best], f"{scores[row, best]:.4f}", sep="\t")
