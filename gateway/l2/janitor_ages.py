"""How much of a pool is how old, in memory that does not grow with the number of files. Pure."""

from __future__ import annotations

from routing.value import value

# Sub-buckets of each power of two: ages are told apart to 1 in 64, so of files that are a week old
# to 3 hours, and of those of an hour to a minute.
_SUB_BUCKETS = 64
_SUB_BITS = 7  # bits of the smallest age that has a bucket of more than one second
# 2^33 s are 272 years: what is older has a clock that is wrong.
_MAX_AGE_S = 2**33
_NUM_BUCKETS = 64 * (33 - 6) + 128
# A bucket of fewer files goes whole: chosen by chance, a share of them might be none.
_MIN_DIVISIBLE = 64
# Hexadecimal digits of a digest that are taken for its place in [0, 1).
_DIGITS = 8


def bucket_of(age_s: float) -> int:
    """Return the number of an age's bucket; older ages have higher ones.

    Args:
        age_s: Seconds; negative ones (a clock that is ahead) count as 0.
    """
    whole = min(max(int(age_s), 0), _MAX_AGE_S)
    power = max(whole.bit_length() - _SUB_BITS, 0)
    return _SUB_BUCKETS * power + (whole >> power)


def youngest_of(bucket: int) -> int:
    """Return the lowest age of a bucket, in seconds."""
    power = max(bucket // _SUB_BUCKETS - 1, 0)
    return (bucket - _SUB_BUCKETS * power) << power


def place_of(digest: str) -> float:
    """Return a chunk's place in [0, 1), the same for all of its files and in every process.

    Args:
        digest: Hexadecimal, with a sign or without. Being a hash it is evenly spread by itself.
    """
    digits = digest.lstrip("-")[-_DIGITS:]
    return float(int(digits, 16) / 16 ** len(digits))


@value
class Cutoff:
    """Which files are to go: those above a bucket, and some of it.

    Which ones of the bucket is decided by the chunk and not by the order in which files are seen.
    So two janitors that look at the same directory choose the same files, and the parts of one
    chunk are chosen together.

    Attributes:
        bucket: The youngest bucket that loses files.
        share: Of that bucket's files, in [0, 1].
    """

    bucket: int
    share: float

    def takes(self, age_s: float, digest: str) -> bool:
        """Return whether a file of this age and chunk is to go."""
        bucket = bucket_of(age_s)
        if bucket != self.bucket:
            return bucket > self.bucket
        return place_of(digest) < self.share


class AgeHistogram:
    """Files and bytes by age."""

    def __init__(self) -> None:
        self._files = [0] * _NUM_BUCKETS
        self._bytes = [0] * _NUM_BUCKETS

    def add(self, age_s: float, num_bytes: int) -> None:
        """Count a file."""
        bucket = bucket_of(age_s)
        self._files[bucket] += 1
        self._bytes[bucket] += num_bytes

    def oldest_s(self) -> int:
        """Return the age of the oldest file, rounded down to its bucket; 0 without files."""
        return next((youngest_of(b) for b in range(_NUM_BUCKETS - 1, -1, -1) if self._files[b]), 0)

    def cutoff(self, num_bytes: int) -> Cutoff:
        """Return what has to go so that about `num_bytes` do, oldest first.

        Args:
            num_bytes: Above 0. Where there is less, all of it goes.
        """
        left = num_bytes
        for bucket in range(_NUM_BUCKETS - 1, -1, -1):
            held = self._bytes[bucket]
            if held >= left:
                divisible = self._files[bucket] >= _MIN_DIVISIBLE
                return Cutoff(bucket, left / held if divisible else 1.0)
            left -= held
        return Cutoff(0, 1.0)

    def above(self, cutoff: Cutoff) -> tuple[int, int]:
        """Return how many files, and bytes, a cutoff takes; of its own bucket about."""
        files = sum(self._files[cutoff.bucket + 1 :])
        num_bytes = sum(self._bytes[cutoff.bucket + 1 :])
        files += round(self._files[cutoff.bucket] * cutoff.share)
        num_bytes += round(self._bytes[cutoff.bucket] * cutoff.share)
        return files, num_bytes
