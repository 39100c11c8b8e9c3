"""Images that clients send. Their names, types and sizes are never trusted."""

from dataclasses import dataclass
from io import BytesIO

from PIL import Image, UnidentifiedImageError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from ffcil.data.decoding import IN_FLIGHT, as_shown, scaled
from ffcil.serving.limits import Limits
from ffcil.serving.refusal import Refusal

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
"""Formats that are decoded. Others of Pillow, such as EPS, start programs or are rare."""
LONGEST_NAME = 100
"""Most characters of the name of a class."""


@dataclass(frozen=True)
class Upload:
    """An image as it was sent."""

    field: str
    """Name of the field of the form; empty if the image was the whole request."""
    name: str
    """Name of the file, for messages."""
    content: bytes


async def read_uploads(request: Request, most: int) -> list[Upload]:
    """The images of a request: the files of a form, or the request itself."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind.startswith("image/") or kind == "application/octet-stream":
        content = await request.body()
        return [Upload("", "The image", content)] if content else _no_images()
    if kind != "multipart/form-data":
        raise Refusal(415, f"The request has the type {kind or 'none'!r}: send an image, or a form with files.")
    try:
        form = await request.form(max_files=most, max_fields=0)
    except HTTPException as error:
        many = "Too many files" in str(error.detail)
        raise Refusal(
            413 if many else 400,
            f"The request has more than {most} images: send fewer."
            if many
            else f"The form cannot be read ({error.detail}): send each image as a file.",
        ) from error
    try:
        files = [(field, value) for field, value in form.multi_items() if isinstance(value, UploadFile)]
        return [Upload(field, file.filename or field, await file.read()) for field, file in files] or _no_images()
    finally:
        await form.close()


def _no_images() -> list[Upload]:
    raise Refusal(400, "The request has no image: send at least one.")


def decode(upload: Upload, size: int, limits: Limits) -> Image.Image:
    """Decode an image, scaled for a network of input size `size`, as `Classifier.answer` does."""
    try:
        with Image.open(BytesIO(upload.content), formats=FORMATS) as image:
            if image.width * image.height > limits.pixels:
                raise Image.DecompressionBombError
            with IN_FLIGHT.take(image.width * image.height):
                return scaled(as_shown(image), size)
    except Image.DecompressionBombError as error:  # Pillow has a limit, too
        raise Refusal(413, f"{upload.name} has more than {limits.pixels:,} pixels: scale it down.") from error
    except UnidentifiedImageError as error:
        raise Refusal(415, f"{upload.name} is not an image: send {', '.join(FORMATS)}.") from error
    except Exception as error:  # decoders raise exceptions of any type for damaged files
        raise Refusal(422, f"{upload.name} cannot be read ({error}): repair it, or leave it out.") from error


def class_name(field: str) -> str:
    """The name of a class that a client sent, if it can be one."""
    name = field.strip()
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        raise Refusal(
            422, f"The class name {name[:20]!r} cannot be used: choose 1 to {LONGEST_NAME} printable characters."
        )
    return name
