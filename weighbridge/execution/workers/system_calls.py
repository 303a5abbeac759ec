"""The seccomp filter of a confined worker: which system calls are denied, and the program that the kernel runs.

Landlock decides which files are opened, but not whose mode, times or length change, and nothing about processes,
sockets and the machine. What a replay has no use for is denied here. The numbers are those of Linux
(`arch/x86/entry/syscalls/syscall_64.tbl`, `include/uapi/asm-generic/unistd.h`).
"""

from __future__ import annotations

import struct

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS = 1, 38
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
"""Offsets into `struct seccomp_data`."""
_X32 = 0x40000000
"""The x32 numbering of x86_64 would get around the list."""
_THREAD, _NAMESPACES = 0x00010000, 0x7E020000
"""Flags of `clone`."""
_OWNERS = (8, 10, 15)
"""`F_SETOWN`, `F_SETSIG` and `F_SETOWN_EX` of `fcntl`: signals to the owner of a file."""
_CONTROLS = (
    0x5412, 0x541C, 0x8901, 0x8902, 0x40086602, 0x40046602, 0x401C5820, 0xC0045877, 0xC0045878, 0xC0185879,
)  # fmt: skip
"""`TIOCSTI`, `TIOCLINUX`, `FIOSETOWN` and `SIOCSPGRP` of `ioctl`; and, which need no file that is open for writing,
`FS_IOC_SETFLAGS` in 64 and 32 bits, `FS_IOC_FSSETXATTR`, `FIFREEZE`, `FITHAW` and `FITRIM`."""
_KEPT_SETTINGS = (1, 4)
"""`PR_SET_PDEATHSIG` and `PR_SET_DUMPABLE` of `prctl`: that this process ends with its parent, and that its memory is
neither dumped nor read by others, is not taken back."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_COLUMN = {"x86_64": 0, "aarch64": 1}

Numbers = tuple[int | None, int | None]
"""Of a call on x86_64 and on aarch64; None where it does not exist."""

NETWORK: dict[str, Numbers] = {
    "socket": (41, 198), "socketpair": (53, 199), "connect": (42, 203), "bind": (49, 200), "listen": (50, 201),
}  # fmt: skip
PROCESSES: dict[str, Numbers] = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kill": (62, 129),
    "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "kcmp": (312, 272), "setpriority": (141, 140),
    "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "sched_setattr": (314, 274),
    "ioprio_set": (251, 30), "migrate_pages": (256, 238), "move_pages": (279, 239), "shmget": (29, 194),
    "shmctl": (31, 195), "shmat": (30, 196), "semget": (64, 190), "semctl": (66, 191), "semop": (65, 193),
    "semtimedop": (220, 192), "msgget": (68, 186), "msgsnd": (69, 189), "msgrcv": (70, 188), "msgctl": (71, 187),
    "mq_open": (240, 180), "mq_unlink": (241, 181), "add_key": (248, 217), "request_key": (249, 218),
    "keyctl": (250, 219), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "bpf": (321, 280),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
}  # fmt: skip
FILES: dict[str, Numbers] = {
    "truncate": (76, 45), "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54), "utime": (132, None),
    "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88), "setxattr": (188, 5),
    "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463), "removexattr": (197, 14),
    "lremovexattr": (198, 15), "fremovexattr": (199, 16), "removexattrat": (466, 466), "file_setattr": (469, 469),
    "mknod": (133, None), "mknodat": (259, 33), "name_to_handle_at": (303, 264), "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262), "quotactl": (179, 60), "quotactl_fd": (443, 443), "acct": (163, 89),
}  # fmt: skip
MACHINE: dict[str, Numbers] = {
    "unshare": (272, 97), "setns": (308, 268), "chroot": (161, 51), "pivot_root": (155, 41), "mount": (165, 40),
    "umount2": (166, 39), "open_tree": (428, 428), "open_tree_attr": (467, 467),
    "statmount": (457, 457), "listmount": (458, 458),
    "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170), "clock_settime": (227, 112),
    "adjtimex": (159, 171), "clock_adjtime": (305, 266), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "iopl": (172, None), "ioperm": (173, None),
    "syslog": (103, 116), "vhangup": (153, 58), "personality": (135, 92), "capset": (126, 91),
}  # fmt: skip
PROGRAMS: dict[str, Numbers] = {
    "execve": (59, 221), "execveat": (322, 281), "fork": (57, None), "vfork": (58, None),
    "memfd_create": (319, 279), "memfd_secret": (447, 447),
}  # fmt: skip
"""What starts programs and processes, besides `clone`, and memory that no limit counts."""
_CLONE, _CLONE3 = (56, 220), (435, 435)
_TGKILL, _PRLIMIT, _AFFINITY = (234, 131), (302, 261), (203, 122)
"""Allowed on the process itself: the first is how `abort` ends one."""
_FCNTL, _IOCTL, _PRCTL = (72, 25), (16, 29), (157, 167)


def program(machine: str, process: int, *, allow_programs: bool) -> bytes:
    """Returns the filter, as an array of `struct sock_filter`.

    Args:
        machine: One of `ARCHITECTURES`.
        process: The identifier of the process that it is for.
        allow_programs: Leave new processes and programs alone.
    """
    column = _COLUMN[machine]
    denied = [*NETWORK.values(), *PROCESSES.values(), *FILES.values(), *MACHINE.values()]
    denied += [] if allow_programs else PROGRAMS.values()
    steps = [
        _op(_LOAD, _ARCHITECTURE), _op(_EQUAL, ARCHITECTURES[machine], 1, 0), _deny(), _op(_LOAD, _NUMBER),
    ]  # fmt: skip
    if machine == "x86_64":
        steps += [_op(_AT_LEAST, _X32, 0, 1), _deny()]
    for each in denied:
        if (number := each[column]) is not None:
            steps += [_op(_EQUAL, number, 0, 1), _deny()]
    for numbers in (_TGKILL, _PRLIMIT, _AFFINITY):
        own = [_op(_EQUAL, process, 1, 0), *([] if numbers is _TGKILL else [_op(_EQUAL, 0, 0, 1)])]
        steps += _on(numbers[column], 0, [*own, _allow(), _deny()] if len(own) == 2 else [*own, _deny(), _allow()])
    for numbers, argument, values in ((_FCNTL, 1, _OWNERS), (_IOCTL, 1, _CONTROLS), (_PRCTL, 0, _KEPT_SETTINGS)):
        tests = [_op(_EQUAL, value, len(values) - index, 0) for index, value in enumerate(values)]
        steps += _on(numbers[column], argument, [*tests, _allow(), _deny()])
    if not allow_programs:
        flags = [_op(_ANY_BIT, _NAMESPACES, 1, 0), _op(_ANY_BIT, _THREAD, 1, 0), _deny(), _allow()]
        steps += _on(_CLONE[column], 0, flags)
        # Its flags lie in memory, which no filter reads; without it the C library falls back to `clone`.
        steps += [_op(_EQUAL, _CLONE3[column], 0, 1), _op(_RETURN, _ERRNO | _ENOSYS)]
    return b"".join([*steps, _allow()])


def _on(number: int, argument: int, then: list[bytes]) -> list[bytes]:
    """On a call, loads the low half of an argument and goes on with `then`, which must return."""
    return [_op(_EQUAL, number, 0, len(then) + 1), _op(_LOAD, 16 + 8 * argument), *then]


def _op(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, k)


def _deny() -> bytes:
    return _op(_RETURN, _ERRNO | _EPERM)


def _allow() -> bytes:
    return _op(_RETURN, _ALLOW)
