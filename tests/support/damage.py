"""Files and messages of which one byte is another."""


def flipped(data: bytes, place: int = -1) -> bytes:
    """The same bytes with all bits of one turned over.

    A constant put in its place would now and then be what stands there already: the bytes of digests and signatures are
    as good as random, so one run in 256 would alter nothing.
    """
    altered = bytearray(data)
    altered[place] ^= 0xFF
    return bytes(altered)
