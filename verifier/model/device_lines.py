"""Lists of devices that two parties agree on by a digest: lines with one encoding.

A first line names the format. For each device follow its UEID in hex, a tab, and the BLAKE3 of its certificate, or `-`
where that is not known. UEIDs ascend.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import FormatError

_UNKNOWN = "-"
_LINE = re.compile(rf"((?:[0-9a-f]{{2}}){{17,33}})\t([0-9a-f]{{{2 * DIGEST_SIZE}}}|{_UNKNOWN})")


def written(head: str, devices: Mapping[bytes, bytes]) -> bytes:
    """Returns the lines.

    Args:
        head: Names the format.
        devices: By UEID, ascending: the digest of the certificate; empty if it is not known.
    """
    lines = (f"{ueid.hex()}\t{digest.hex() or _UNKNOWN}\n" for ueid, digest in devices.items())
    return (f"{head}\n" + "".join(lines)).encode()


def read(data: bytes, head: str, limit: int, what: str) -> dict[bytes, bytes]:
    """Reads lines; inverse of `written` for all bytes that are accepted.

    Args:
        data: The lines.
        head: Names the format.
        limit: So many bytes there may be.
        what: What the list is called, for messages.

    Raises:
        FormatError: It is none, or devices are doubled or out of order.
    """
    first, _, rest = data.partition(b"\n")
    if first != head.encode() or not rest.endswith(b"\n") or len(data) > limit:
        raise FormatError(f"This is no {what} of at most {limit} bytes; take it as it was agreed on.")
    found: dict[bytes, bytes] = {}
    last = b""
    for number, line in enumerate(rest[:-1].split(b"\n"), 2):
        match = _LINE.fullmatch(line.decode("ascii", "replace"))
        if match is None:
            raise FormatError(f"Line {number} of the {what} is no UEID and digest with a tab between.")
        ueid = bytes.fromhex(match[1])
        if ueid <= last:
            raise FormatError(f"Line {number} of the {what} is doubled or out of order.")
        found[ueid], last = b"" if match[2] == _UNKNOWN else bytes.fromhex(match[2]), ueid
    return found
