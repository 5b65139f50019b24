"""Kernels: functions on arrays, written once, that run as they stand or compiled to machine code.

A function marked with `kernel` stays what it is: the *twin*, which needs nothing but numpy. `compiled(f)` is the same
function, and every kernel that it calls, compiled by numba. Both come to the same bits: kernels sum in loops of
their own (a library is free to choose the order), and nothing is compiled with relaxed arithmetic.

Machine code is kept in the user's cache folder, under a digest of the sources of all kernels, so that a
change of one is never answered with old code of another.
"""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__kernel__"
_SOURCES = ("policies", "simulation", "measure")  # the rooms that have kernels
_MONOTONIC = time.CLOCK_MONOTONIC
_lock = threading.RLock()
_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}


def kernel(function: F) -> F:
    """Mark a function that `compiled` may compile; it may call other kernels, and what numba knows of numpy."""
    setattr(function, _MARK, True)
    return function


def can_compile() -> bool:
    """Whether numba is installed (the extra `simulate`)."""
    return importlib.util.find_spec("numba") is not None


@kernel
def clock_ns(scratch: NDArray[np.int64]) -> int:
    """Return nanoseconds of the monotonic clock, for kernels that time a part of themselves.

    `scratch` (2,) int64 is overwritten by the compiled form, which asks the C library.
    """
    del scratch
    return time.perf_counter_ns()


def compiled(function: F) -> F:
    """Return the compiled form of a kernel, made on its first call with new types, or loaded from the cache.

    Raises ImportError without numba and TypeError for a function that is no kernel.
    """
    if not getattr(function, _MARK, False):
        raise TypeError(f"{function.__qualname__} is not a kernel")
    with _lock:
        return cast("F", _compiled.get(function) or _compile(cast("FunctionType", function)))


def fastest(function: F) -> F:
    """Return the compiled form of a kernel where numba is installed, else the kernel itself."""
    return compiled(function) if can_compile() else function


def is_cached() -> bool:
    """Whether some kernels of this very version have been compiled before: what comes now is quick."""
    return any(cache_folder().glob("**/*.nbc"))


@cache
def cache_folder() -> Path:
    """Where compiled kernels are kept: one folder for each state of their sources."""
    digest = hashlib.sha256(sys.version.encode())
    for name in ("numba", "llvmlite", "numpy"):
        digest.update(_version(name).encode())
    root = Path(__file__).parent
    for source in sorted(file for room in _SOURCES for file in (root / room).glob("**/*.py")):
        digest.update(source.relative_to(root).as_posix().encode())
        digest.update(source.read_bytes())
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return base / "dfrs-testbed" / "kernels" / digest.hexdigest()[:16]


def _writable_folder() -> Path:
    """Return the cache folder, or one for this process alone where the user's cannot be written."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="dfrs-testbed-kernels-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # 10 ms that only this needs

    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _compile(function: FunctionType) -> Callable[..., Any]:
    import numba  # noqa: PLC0415  # half a second, and an extra

    if not _compiled:
        numba.config.CACHE_DIR = str(_writable_folder())  # type: ignore[attr-defined]  # numba makes it at run time
    if function is clock_ns:
        return _compiled.setdefault(clock_ns, numba.njit(cache=True, nogil=True)(_native_clock()))
    names = {name: value for name, value in function.__globals__.items() if name in _names(function)}
    for name, value in names.items():
        if getattr(value, _MARK, False):
            names[name] = compiled(value)
    # The twin's own globals keep the plain kernels; the clone sees the compiled ones under the same names.
    clone = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__, function.__defaults__)
    clone.__qualname__ = function.__qualname__
    clone.__module__ = function.__module__
    result = cast("Callable[..., Any]", numba.njit(cache=True, nogil=True, error_model="numpy")(clone))
    _compiled[function] = result
    return result


def _native_clock() -> Callable[..., Any]:
    """Return what numba compiles in the place of `clock_ns`, which needs the interpreter."""
    from numba import types  # noqa: PLC0415  # half a second, and an extra

    # A name that the linker resolves may be cached with the machine code, unlike the address of a function. It is a
    # global of the clone: what a closure holds becomes part of the key of the cache, and this is new each time.
    signature: Any = types.int32
    clock = types.ExternalFunction("clock_gettime", signature(types.int32, types.uintp))
    return FunctionType(_ask_clock.__code__, {**globals(), "_clock_gettime": clock})


def _ask_clock(scratch: Any) -> Any:
    _clock_gettime(_MONOTONIC, scratch.ctypes.data)
    return scratch[0] * 1_000_000_000 + scratch[1]


def _clock_gettime(clock: int, timespec: int) -> int:
    raise NotImplementedError(f"the C function stands here when compiled: {clock}, {timespec}")


def _names(function: FunctionType) -> set[str]:
    """Return the global names that a function uses, in comprehensions and inner functions as well."""
    found: set[str] = set()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        found.update(code.co_names)
        waiting += [constant for constant in code.co_consts if isinstance(constant, type(code))]
    return found
