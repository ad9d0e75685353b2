"""The trainer process's environment and memory: how much it took, and giving it back."""

import ctypes
import resource
import sys

from art_backend.process import BRIEF_WAITING, EQUAL_ROWS

CPU_ENVIRONMENT = {
    # Activations of one pack are freed and asked for again by the next. By default glibc returns such blocks to the kernel
    # and faults every page in again; these keep them until ``return_free_memory``.
    "MALLOC_MMAP_THRESHOLD_": str(4 * 2**30),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**30),
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    # One arena: threads that free what others allocated would otherwise spread the same buffers over many.
    "MALLOC_ARENA_MAX": "1",
    **BRIEF_WAITING,
    **EQUAL_ROWS,
}
"""Read by glibc, OpenMP and MKL when a process starts; others ignore it."""


def peak_memory_bytes() -> int:
    """Largest resident size that this process ever had."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def return_free_memory() -> None:
    """Hand freed memory back to the system, where the C library can (glibc)."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        try:
            trim = libc.malloc_trim
        except AttributeError:  # musl returns free memory by itself
            return
        trim(0)
