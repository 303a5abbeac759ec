"""Run by test_treehash_triton.py with TRITON_INTERPRET=1: the kernel against the `blake3` package, without a GPU."""

import numpy as np
import torch
from blake3 import blake3

from weighbridge.core.treehash.tree import device_digest
from weighbridge.core.treehash.triton_chunks import chunks

KEY = bytes(range(32))

for size in (1025, 66 * 1024 + 700):
    data = torch.from_numpy(np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8))
    content = data.numpy().tobytes()
    assert device_digest(data, chunks=chunks) == blake3(content).digest(), size
    assert device_digest(data, KEY, chunks=chunks) == blake3(content, key=KEY).digest(), size
beyond = chunks(torch.zeros(2, 256, dtype=torch.int32), torch.zeros(8, dtype=torch.int32), (1 << 32) - 1, 0)
assert torch.equal(
    beyond[:, 1:], chunks(torch.zeros(1, 256, dtype=torch.int32), torch.zeros(8, dtype=torch.int32), 1 << 32, 0)
)
print("agrees")
