"""Seeds for every use of randomness, derived from the seed of a run."""

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Return a seed for one use, independent of the seeds for every other use."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
