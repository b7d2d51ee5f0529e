"""What the C library does with the memory that a CPU backend's programs give back."""

import ctypes
import importlib.util
import sys

# Names and numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_NEVER, _NONE, _ONE = -1, 0, 1


def keep_freed_memory() -> bool:
    """Keeps freed memory in this process, for reuse; whether it does now. To be called before JAX's first array.

    XLA's CPU backend asks for the whole scratch memory of a step each time and gives it back at the end. glibc then
    returns it to Linux, which clears it again, page by page, in the middle of the next step. The process stays as large
    as its largest step. Nothing is done on other systems, nor where JAX has an accelerator's plugin: only host arrays
    are made here then.
    """
    if sys.platform != "linux" or importlib.util.find_spec("jax_plugins") or importlib.util.find_spec("libtpu"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # which not every C library has
    settings = ((_M_MMAP_MAX, _NONE), (_M_TRIM_THRESHOLD, _NEVER), (_M_ARENA_MAX, _ONE))
    return mallopt is not None and all(mallopt(parameter, value) for parameter, value in settings)
