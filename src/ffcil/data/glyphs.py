"""The embedded data set: small colour images of 100 characters, drawn on the user's machine without a download.

An image shows one character of the fonts DejaVu or STIX, which are part of matplotlib, in a random face, pose and
colour on a random background, with parts of other characters around it, strokes, blur and noise.
"""

import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features
from torch import Tensor
from torch.nn import functional as F

from ffcil.data.augment import Augmentation
from ffcil.data.cache import cache_folder, cached
from ffcil.data.image_set import ImageSet
from ffcil.data.store import PARTS, StoreDraft, open_store, verify_store
from ffcil.errors import InputError

# without characters that look alike: 0 O o, 1 I l, x X, Γ r, Э 3 and so on
CHARACTERS: tuple[str, ...] = (
    *"23456789",
    *"ABCDEFGHJKLMNPQRSTUVWXYZ",
    *"abdefghmnrt",
    *"ΔΘΞΣΦΨΩδλμξπσ",
    *"БДЖИЦШЫЮЯ",
    *"ԲԹՖდთჟ",
    *"&@#$%?€£§¶‡√∞∀⌘",
    *"★☀♥♣♦♪☺☯☎☂✈✂⚓♞",
)

GLYPHS_AUGMENTATION = Augmentation(
    mean=(0.501, 0.500, 0.500), std=(0.240, 0.242, 0.240), padding=2, flip=False, policy="svhn", cutout=8
)
"""There is no flip, because a mirrored character is another character. The Cutout square is small, because a larger one
would hide the differences between characters."""

SIZE = 32
"""Side of an image in pixels."""
TRAIN_PER_CLASS, TEST_PER_CLASS = 200, 50

_VERSION = 3  # increased when the same arguments give other images or another store
_FACES = (
    *("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Bold", "DejaVuSerif-Italic", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralBol", "STIXGeneralItalic", "STIXGeneralBolIta"),
)
_EM = 96  # font size in pixels, before the ink is fitted into a mask
_MASK, _INK = 64, 48  # side of a mask, and longer side of the ink in it
_CHUNK = 100  # images drawn at a time; bounds the memory
_LUMA = (0.299, 0.587, 0.114)  # perceived brightness of red, green and blue
_CONTRAST = 0.25  # minimal brightness difference of character and background (99 % of images)


def draw_glyphs(characters: Sequence[str], images_per_class: int, seed: int) -> NDArray[np.uint8]:
    """Draw `images_per_class` images of each of `characters`, class by class: uint8, [C * n, 3, 32, 32].

    The same arguments give the same images, bit-equal on one machine. Rounding differs between processors and versions
    of FreeType. The characters at the borders are also taken from `characters`.
    """
    masks = [_masks(character) for character in characters]
    others = F.avg_pool2d(torch.cat(masks)[:, None], 2)[:, 0]
    images = np.empty((len(characters), images_per_class, 3, SIZE, SIZE), np.uint8)
    for character, own, rows in zip(characters, masks, images, strict=True):
        draw = _Draw(np.random.Generator(np.random.PCG64([seed, ord(character)])))
        for start in range(0, images_per_class, _CHUNK):
            chunk = rows[start : start + _CHUNK]
            chunk[:] = _images(draw, own, others, len(chunk)).numpy()
    return images.reshape(-1, 3, SIZE, SIZE)


def glyphs(train_per_class: int = TRAIN_PER_CLASS, test_per_class: int = TEST_PER_CLASS) -> tuple[ImageSet, ImageSet]:
    """Training and test images of `CHARACTERS`, drawn once, then memory-mapped from the cache folder."""
    per_class = (train_per_class, test_per_class)

    def write(folder: Path) -> None:
        images = ((part, image) for part in PARTS for image in draw_glyphs(CHARACTERS, per_class[part], seed=part))
        with closing(StoreDraft(folder)) as draft:
            for part, image in itertools.islice(images, len(draft), None):
                draft.add(part, image, SIZE, SIZE)
            draft.finish()

    store = cached(_key(*per_class), write, open_store)
    train, test = (
        ImageSet(
            pixels.view(-1, 3, SIZE, SIZE), torch.arange(len(CHARACTERS)).repeat_interleave(per_class[part]), CHARACTERS
        )
        for part, (pixels, _) in enumerate(store.parts)
    )
    return train, test


def _key(train_per_class: int, test_per_class: int) -> str:
    # the pixels of a character depend on the version of FreeType
    return f"glyphs-{_VERSION}-{train_per_class}-{test_per_class}-freetype-{features.version('freetype2')}"


def verify_glyphs(train_per_class: int = TRAIN_PER_CLASS, test_per_class: int = TEST_PER_CLASS) -> None:
    """Draw the images if necessary, and raise an error if their store does not match its checksums."""
    glyphs(train_per_class, test_per_class)
    verify_store(cache_folder() / _key(train_per_class, test_per_class))


def faces_with(character: str) -> tuple[str, ...]:
    """Names of the faces that contain `character`."""
    return tuple(face for face in _FACES if ord(character) in _charmap(face))


def _path(face: str) -> Path:
    import matplotlib  # it writes to stderr if it cannot write to the home folder, as in a container

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"


@lru_cache
def _charmap(face: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(str(_path(face))).get_charmap())


@lru_cache
def _font(face: str) -> ImageFont.FreeTypeFont:
    # the other layout is not available on all machines
    return ImageFont.truetype(_path(face), _EM, layout_engine=ImageFont.Layout.BASIC)


def glyph_mask(character: str, face: str) -> NDArray[np.uint8]:
    """The ink of a character in a face, uint8 [64, 64], centred, with a longer side of 48."""
    canvas = Image.new("L", (3 * _EM, 3 * _EM))
    ImageDraw.Draw(canvas).text((_EM, _EM), character, fill=255, font=_font(face))
    box = canvas.getbbox()
    if box is None:
        raise InputError(f"The character {character!r} is blank in {face}: leave it out.")
    ink = canvas.crop(box)
    scale = _INK / max(ink.size)
    ink = ink.resize((max(1, round(ink.width * scale)), max(1, round(ink.height * scale))), Image.Resampling.LANCZOS)
    mask = Image.new("L", (_MASK, _MASK))
    mask.paste(ink, ((_MASK - ink.width) // 2, (_MASK - ink.height) // 2))
    return np.asarray(mask)


def _masks(character: str) -> Tensor:
    """One mask per face that contains the character: float32 in [0, 1], [faces, 64, 64]."""
    faces = faces_with(character) if len(character) == 1 else ()
    if not faces:
        raise InputError(f"No font has the character {character!r}: leave it out.")
    return torch.from_numpy(np.stack([glyph_mask(character, face) for face in faces])).float() / 255


@dataclass(frozen=True)
class _Draw:
    """Random tensors from a NumPy generator, which gives the same numbers on every machine."""

    generator: np.random.Generator

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.from_numpy(self.generator.random(shape, dtype=np.float32))

    def normal(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.generator.standard_normal(shape, dtype=np.float32))

    def below(self, bound: int, *shape: int) -> Tensor:
        return torch.from_numpy(self.generator.integers(0, bound, shape))


def _grid(side: int) -> tuple[Tensor, Tensor]:
    """Coordinates x and y of pixel centres from the middle, in pixels of the final image: [side], [side, 1]."""
    centres = (torch.arange(side) + 0.5) * (SIZE / side) - SIZE / 2
    return centres, centres[:, None]


def _images(draw: _Draw, own: Tensor, others: Tensor, n: int) -> Tensor:
    """Draw n images of one character: uint8, [n, 3, 32, 32]."""
    image, colours = _backgrounds(draw, n)
    for _ in range(2):
        image = _blend(image, _neighbours(draw, others, n), _colours(draw, n))
    image = _blend(image, _characters(draw, own, n), _contrasting(draw, colours))
    image = _blend(image, _strokes(draw, n), _colours(draw, n))
    image = _blurred(image, draw.uniform(0, 0.9, n, 1, 1, 1))
    image = image + draw.uniform(0, 0.07, n, 1, 1, 1) * draw.normal(n, 3, SIZE, SIZE)
    return image.mul_(255).round_().clamp_(0, 255).to(torch.uint8)


def _blend(image: Tensor, cover: Tensor, colour: Tensor) -> Tensor:
    """Blend `colour` ([n, 3]) over the image with opacity `cover` ([n, 32, 32], 0 .. 1)."""
    return torch.lerp(image, colour[:, :, None, None], cover[:, None])


def _backgrounds(draw: _Draw, n: int) -> tuple[Tensor, Tensor]:
    """Two colours mixed by a ramp, a disc, waves or clouds: images [n, 3, 32, 32] and colours [n, 2, 3]."""
    first = _colours(draw, n)
    second = (first + draw.uniform(-0.3, 0.3, n, 3)).clamp_(0, 1)
    x, y = _grid(SIZE)
    angle = draw.uniform(0, 2 * torch.pi, n, 1, 1)
    along = x * torch.cos(angle) + y * torch.sin(angle)  # [n, 32, 32]
    middle = draw.uniform(-12, 12, 2, n, 1, 1)
    distance = torch.hypot(x - middle[0], y - middle[1])
    clouds = F.interpolate(draw.uniform(-1, 2, n, 1, 5, 5), (SIZE, SIZE), mode="bicubic", align_corners=True)[:, 0]
    waves = 0.5 + 0.5 * torch.sin(along * draw.uniform(0.25, 1.3, n, 1, 1) + draw.uniform(0, 2 * torch.pi, n, 1, 1))
    kinds = torch.stack([along / SIZE + 0.5, distance / 20, waves, clouds]).clamp_(0, 1)
    mix = kinds[draw.below(4, n), torch.arange(n)]
    return _blend(first[:, :, None, None].expand(n, 3, SIZE, SIZE), mix, second), torch.stack([first, second], 1)


def _colours(draw: _Draw, *shape: int) -> Tensor:
    """Random colours between grey and vivid: [*shape, 3]."""
    grey = draw.uniform(0, 1, *shape, 1)
    return torch.lerp(grey.expand(*shape, 3), draw.uniform(0, 1, *shape, 3), draw.uniform(0.1, 1, *shape, 1))


def _contrasting(draw: _Draw, colours: Tensor) -> Tensor:
    """A random colour whose brightness differs enough from both of `colours` ([n, 2, 3]): [n, 3]."""
    n, tries = len(colours), 32
    candidates, luma = _colours(draw, n, tries), torch.tensor(_LUMA)
    contrast = ((candidates @ luma)[:, :, None] - (colours @ luma)[:, None]).abs().amin(2)  # [n, tries]
    enough = contrast >= _CONTRAST
    # the first sufficient one, or else the best
    choice = torch.where(enough.any(1), enough.int().argmax(1), contrast.argmax(1))
    return candidates[torch.arange(n), choice]


def _posed(masks: Tensor, side: int, extent: Tensor, turn: Tensor, slant: Tensor, aspect: Tensor, at: Tensor) -> Tensor:
    """Transform masks [n, s, s] to a length of `extent`, a pose and the centre `at` ([2, n]): [n, side, side]."""

    def each(parameter: Tensor) -> Tensor:
        return parameter[:, None, None]

    x, y = _grid(side)
    x, y = x - each(at[0]), y - each(at[1])
    cos, sin = each(torch.cos(turn)), each(torch.sin(turn))
    x, y = cos * x + sin * y, cos * y - sin * x
    x = x + each(slant) * y
    unit = each(2 * _INK / _MASK / extent)  # mask coordinates run from -1 to 1
    grid = torch.stack([x * unit / each(aspect), y * unit * each(aspect)], -1)
    return F.grid_sample(masks[:, None], grid, align_corners=False)[:, 0]


def _characters(draw: _Draw, own: Tensor, n: int) -> Tensor:
    """The character in random faces and poses: [n, 32, 32]."""
    extent = draw.uniform(18, 28, n)
    seen = _posed(
        own[draw.below(len(own), n)],
        2 * SIZE,  # four samples per pixel against jagged edges
        extent,
        turn=draw.uniform(-0.3, 0.3, n),
        slant=draw.uniform(-0.3, 0.3, n),
        aspect=draw.uniform(0.88, 1.14, n),
        at=draw.uniform(-1, 1, 2, n) * (SIZE / 2 + 1 - extent / 2),
    )
    rows = seen[:, ::2] + seen[:, 1::2]
    return (rows[:, :, ::2] + rows[:, :, 1::2]) / 4


def _neighbours(draw: _Draw, others: Tensor, n: int) -> Tensor:
    """Another character at a border, in half of the images: [n, 32, 32]."""
    angle, distance = draw.uniform(0, 2 * torch.pi, n), draw.uniform(17, 22, n)
    seen = _posed(
        others[draw.below(len(others), n)],
        SIZE,
        extent=draw.uniform(14, 26, n),
        turn=draw.uniform(-0.6, 0.6, n),
        slant=draw.uniform(-0.3, 0.3, n),
        aspect=draw.uniform(0.8, 1.2, n),
        at=torch.stack([torch.cos(angle), torch.sin(angle)]) * distance,
    )
    return seen * (draw.uniform(0, 1, n) < 0.5)[:, None, None]


def _strokes(draw: _Draw, n: int) -> Tensor:
    """A thin straight line, in two of five images: [n, 32, 32]."""
    x, y = _grid(SIZE)
    angle = draw.uniform(0, torch.pi, n, 1, 1)
    distance = (x * torch.cos(angle) + y * torch.sin(angle) - draw.uniform(-12, 12, n, 1, 1)).abs()
    cover = (draw.uniform(0.8, 1.4, n, 1, 1) - distance).clamp_(0, 1)
    return cover * draw.uniform(0.5, 1, n, 1, 1) * (draw.uniform(0, 1, n, 1, 1) < 0.4)


def _blurred(image: Tensor, amount: Tensor) -> Tensor:
    """A mixture of the image and its 3 x 3 binomial blur."""
    wide = F.pad(image, (1, 1, 1, 1), mode="replicate")
    tall = wide[..., 1:] + wide[..., :-1]  # 1 2 1 is 1 1 applied twice
    tall = tall[..., 1:] + tall[..., :-1]
    blurred = tall[..., 1:, :] + tall[..., :-1, :]
    blurred = blurred[..., 1:, :] + blurred[..., :-1, :]
    return torch.lerp(image, blurred / 16, amount)
