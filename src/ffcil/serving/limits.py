"""`Limits`: what a service accepts, so that no client can exhaust it."""

from dataclasses import dataclass

MEGABYTE = 2**20


@dataclass(frozen=True)
class Limits:
    """Limits of a service. A request beyond one of them is refused with a status of 4xx or 503."""

    bytes: int = 32 * MEGABYTE
    """Size of a request for answers."""
    images: int = 64
    """Number of images in a request for answers."""
    learn_bytes: int = 1024 * MEGABYTE
    """Size of a request to learn."""
    learn_images: int = 5000
    """Number of images in a request to learn."""
    pixels: int = 50_000_000
    """Number of pixels of one image. It is known before the image is decoded."""
    seconds: float = 30.0
    """Seconds to send a request for answers, and to answer it."""
    learn_seconds: float = 900.0
    """Seconds to send a request to learn."""
    header_seconds: float = 10.0
    """Seconds to send the header of a request."""
    waiting: int = 1024
    """Number of images that wait for their answers."""
    connections: int = 256
    """Number of clients at a time."""
