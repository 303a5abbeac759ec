"""Counts what a rank sends and receives: what it hands to its process group, and what the kernel's TCP sockets say."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Any

import torch

Tensor = torch.Tensor
Bytes = tuple[int, int]
"""Sent and received."""

_SENT, _RECEIVED, _SIZE = 200, 128, 208
"""Where `struct tcp_info` of Linux has tcpi_bytes_sent and tcpi_bytes_received (64 bits), and its end up to there."""


class CountedGroup:
    """A process group that counts what a rank exchanges with the others; all else it passes on."""

    def __init__(self, group: Any) -> None:
        self._group, self.sent, self.received = group, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def alltoall_base(self, received: Tensor, sent: Tensor, takes: list[int], gives: list[int], options: Any) -> Any:
        """Counts, and exchanges one message with each member."""
        own = self._group.rank()
        self.sent, self.received = self.sent + sum(gives) - gives[own], self.received + sum(takes) - takes[own]
        return self._group.alltoall_base(received, sent, takes, gives, options)

    def _allgather_base(self, received: Tensor, sent: Tensor, options: Any) -> Any:
        """Counts, and gathers: what comes from one neighbour in the ring goes on to the other one."""
        others = (self._group.size() - 1) * sent.numel()
        self.sent, self.received = self.sent + others, self.received + others
        return self._group._allgather_base(received, sent, options)


def over_sockets() -> Bytes:
    """Returns how many bytes of content this process's open TCP sockets have sent and received so far (Linux).

    Raises:
        OSError: The kernel does not count them (before Linux 4.19).
    """
    sent = received = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # a file that is no socket, or closed by now
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.type != socket.SOCK_STREAM or one.family not in (socket.AF_INET, socket.AF_INET6):
                    continue
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            if len(info) >= _SIZE:
                sent += struct.unpack_from("=Q", info, _SENT)[0]
                received += struct.unpack_from("=Q", info, _RECEIVED)[0]
    return sent, received
