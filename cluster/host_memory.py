"""Makes glibc keep the memory that XLA's CPU backend frees."""

import ctypes
import importlib.util
import sys

import jax

# Names and numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_NEVER, _NONE, _ONE = -1, 0, 1


def keep_freed_memory() -> bool:
    """Makes this process keep freed memory for reuse, and returns whether it does. Call this before JAX's first array.

    XLA's CPU backend allocates the scratch memory of a step when the step starts and frees it when the step ends. By
    default glibc returns freed memory to Linux, which clears it again, page by page, during the next step. With the
    settings made here, the process stays as large as its largest step.

    Does nothing on other systems, or if JAX may use an accelerator: then this process only allocates host arrays.
    """
    has_plugin = importlib.util.find_spec("jax_plugins") or importlib.util.find_spec("libtpu")
    if sys.platform != "linux" or (has_plugin and jax.config.jax_platforms != "cpu"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # some C libraries do not have it
    settings = ((_M_MMAP_MAX, _NONE), (_M_TRIM_THRESHOLD, _NEVER), (_M_ARENA_MAX, _ONE))
    return mallopt is not None and all(mallopt(parameter, value) for parameter, value in settings)
