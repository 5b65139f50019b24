"""Kernels: functions on arrays, written once, that run as plain Python or compiled to machine code.

A function marked with `kernel` is not changed: it is the *twin*, which needs nothing but numpy. `compiled(f)` is the
same function, and every kernel that it calls, compiled by numba. Both produce the same bits: kernels sum in explicit
loops (a library is free to choose the order), and nothing is compiled with relaxed arithmetic.

Machine code is stored in the user's cache folder, under a digest of the kernel and of the kernels that it calls.
So outdated machine code is never loaded.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from copy import copy
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__kernel__"
_LEAN = "__lean_kernel__"
_MONOTONIC = time.CLOCK_MONOTONIC
_lock = threading.RLock()
_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}


def kernel(function: F) -> F:
    """Mark a function that `compiled` may compile; it may call other kernels, and the numpy of numba."""
    setattr(function, _MARK, True)
    return function


def lean_kernel(function: F) -> F:
    """Mark a kernel that makes no arrays but slices, calls only lean kernels, and returns numbers or nothing.

    When compiled, it does not count references to its arguments: counting costs more than many loops. Raises TypeError
    for a return annotation other than numbers or None: the returned object would have no owner.
    """
    result = function.__annotations__.get("return")
    result = result.__name__ if isinstance(result, type) else str(result)
    if not re.fullmatch(r"None|(tuple\[)?(int|float|bool)(, (int|float|bool))*\]?", result):
        raise TypeError(f"{function.__qualname__} returns {result}: a lean kernel returns numbers or nothing")
    setattr(function, _LEAN, True)
    return kernel(function)


def bound(function: F, **others: Callable[..., Any]) -> F:
    """Return a copy of a function with its globals of these names replaced, so that one loop serves many policies.

    If all are kernels, the copy is a kernel, and equal arguments return the same object.
    """
    if all(map(is_kernel, (function, *others.values()))):
        return cast("F", _bound_kernel(function, tuple(sorted(others.items()))))
    return cast("F", _clone(cast("FunctionType", function), others))


@cache
def _bound_kernel(function: Callable[..., Any], others: tuple[tuple[str, Callable[..., Any]], ...]) -> FunctionType:
    clone = _clone(cast("FunctionType", function), dict(others))
    clone.__dict__.update(function.__dict__)
    return clone


def _clone(function: FunctionType, names: Mapping[str, Any]) -> FunctionType:
    """Return a copy of the function with `names` among its globals."""
    clone = FunctionType(function.__code__, {**function.__globals__, **names}, function.__name__)
    clone.__defaults__ = function.__defaults__
    clone.__module__ = function.__module__
    clone.__qualname__ = function.__qualname__
    return clone


def is_kernel(function: object) -> bool:
    """Whether a function is marked as a kernel."""
    return getattr(function, _MARK, False) is True


def can_compile() -> bool:
    """Whether numba is installed (the extra `simulate`)."""
    return importlib.util.find_spec("numba") is not None


@kernel
def clock_ns(scratch: NDArray[np.int64]) -> int:
    """Return nanoseconds of the monotonic clock, for kernels that time a part of themselves.

    `scratch` (2,) int64 is overwritten by the compiled form, which calls the C library.
    """
    del scratch
    return time.perf_counter_ns()


def compiled(function: F) -> F:
    """Return the compiled form of a kernel; its first call with new types compiles it, or loads it from the cache.

    Raises ImportError without numba and TypeError for a function that is not a kernel.
    """
    if not is_kernel(function):
        raise TypeError(f"{function.__qualname__} is not a kernel")
    with _lock:
        return cast("F", _compiled.get(function) or _compile(cast("FunctionType", function)))


def fastest(function: F) -> F:
    """Return the compiled form of a kernel where numba is installed, else the kernel itself."""
    return compiled(function) if can_compile() else function


def is_cached(function: Callable[..., Any]) -> bool:
    """Whether the cache has machine code of this version of a kernel, so that its first call does not compile."""
    return any((cache_folder() / _digest(function)).glob("**/*.nbc"))


def cache_folder() -> Path:
    """Return the folder of compiled kernels, with one subfolder per kernel."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return base / "dfrs-testbed" / "kernels"


@cache
def _writable_folder() -> Path:
    """Return the cache folder, or a temporary folder of this process if the user's is not writable."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="dfrs-testbed-kernels-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder


@cache
def _digest(function: Callable[..., Any]) -> str:
    """Return a digest of all that the machine code depends on: the kernel, its constants, the kernels that it calls.

    The digest includes the module's name, as the machine code imports the module. An edit of other code, or a
    reinstallation of the same version, does not change the digest.
    """
    digest = hashlib.sha256(sys.version.encode())
    for name in ("numba", "llvmlite", "numpy"):
        digest.update(_version(name).encode())
    kernel_function = cast("FunctionType", function)
    digest.update(kernel_function.__module__.encode())
    digest.update(repr((_code(kernel_function.__code__, function.__doc__), kernel_function.__defaults__)).encode())
    digest.update(b"lean" if getattr(function, _LEAN, False) else b"")
    annotated = set(re.findall(r"\w+", " ".join(map(str, kernel_function.__annotations__.values()))))
    for name in sorted((_names(kernel_function) | annotated) & kernel_function.__globals__.keys()):
        value = kernel_function.__globals__[name]
        if getattr(value, _MARK, False):
            text = _digest(value)
        elif isinstance(value, type):
            text = _layout(value)
        elif name in annotated:
            continue  # the name of a type that has no layout, such as an array
        else:
            text = getattr(value, "__name__", repr(value))
        digest.update(f"{name} {text}\n".encode())
    return digest.hexdigest()[:24]


def _layout(kind: type) -> str:
    """Return the name of a type with its fields, and with those of the named tuples in them."""
    parts = []
    for name, annotation in getattr(kind, "__annotations__", {}).items() if hasattr(kind, "_fields") else ():
        words = re.findall(r"\w+", str(annotation))
        values = map(vars(sys.modules[kind.__module__]).get, words)
        inner = [_layout(each) for each in values if isinstance(each, type) and hasattr(each, "_fields")]
        parts.append(f"{name} {annotation} {inner}")
    return f"{kind.__qualname__} {parts}"


def _code(code: CodeType, docstring: str | None = None) -> tuple[object, ...]:
    first, *others = code.co_consts or (None,)
    compiled = [None if first == docstring else first, *others]  # the first constant of a function is its docstring
    constants = [_code(each) if isinstance(each, CodeType) else repr(each) for each in compiled]
    return (code.co_name, code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars)


def _version(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415  # takes 10 ms, and only this function needs it

    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _compile(function: FunctionType) -> Callable[..., Any]:
    import numba  # noqa: PLC0415  # takes half a second, and is an extra

    lean = getattr(function, _LEAN, False)
    names = {name: value for name, value in function.__globals__.items() if name in _names(function)}
    for name, value in names.items():
        if getattr(value, _MARK, False):
            if lean and not getattr(value, _LEAN, False):
                raise TypeError(f"{function.__qualname__} is a lean kernel, but calls {name}, which is none")
            names[name] = compiled(value)
    # The twin's own globals keep the plain kernels; the clone gets the compiled ones under the same names.
    clone = _native_clock() if function is clock_ns else _clone(function, names)
    folder = _writable_folder() / _digest(function)
    clone.__code__ = clone.__code__.replace(co_filename=str(_source(folder)), co_firstlineno=1)  # names of cached files
    numba.config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]  # numba makes it at run time
    # Without its run time system numba neither counts references nor allocates.
    options: dict[str, Any] = {"_nrt": False} if lean else {}
    result = cast("Callable[..., Any]", numba.njit(cache=True, nogil=True, error_model="numpy", **options)(clone))
    _forgive(result)
    _compiled[function] = result
    return result


def _forgive(dispatcher: Any) -> None:
    """Treat unreadable files of the cache as missing, so that the kernel is compiled again.

    The files may be damaged, or refer to types that no longer exist, such as the rules of a removed plug-in.
    """
    file = dispatcher._cache._cache_file  # noqa: SLF001  numba has no public way
    file._load_index = partial(_read_or, file._load_index, {})  # noqa: SLF001
    file._load_data = partial(_read_or, file._load_data, None)  # noqa: SLF001


def _read_or(read: Callable[..., Any], nothing: Any, *names: str) -> Any:
    try:
        return read(*names)
    except Exception:  # noqa: BLE001  unpickling damaged bytes may raise any exception
        return copy(nothing)


def _source(folder: Path) -> Path:
    """Return a placeholder file for a kernel's source: numba checks its modification time, which must not change.

    The time of the real source changes with an edit of another function, and with each installation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError), (folder / "kernel.py").open("x") as file:
        file.write("# The source of this machine code is in the package.\n")
    return folder / "kernel.py"


def _native_clock() -> FunctionType:
    """Return the function that numba compiles in place of `clock_ns`, which needs the interpreter."""
    from numba import types  # noqa: PLC0415  # takes half a second, and is an extra

    # A name that the linker resolves may be cached with the machine code, unlike the address of a function. The name is
    # a global of the clone: values in a closure become part of the cache key, and this object is new in each process.
    signature: Any = types.int32
    clock = types.ExternalFunction("clock_gettime", signature(types.int32, types.uintp))
    return FunctionType(_ask_clock.__code__, {**globals(), "_clock_gettime": clock})


def _ask_clock(scratch: Any) -> Any:
    _clock_gettime(_MONOTONIC, scratch.ctypes.data)
    return scratch[0] * 1_000_000_000 + scratch[1]


def _clock_gettime(clock: int, timespec: int) -> int:
    raise NotImplementedError(f"the compiled form calls the C function instead: {clock}, {timespec}")


def _names(function: FunctionType) -> set[str]:
    """Return the global names that a function uses, in comprehensions and inner functions as well."""
    found: set[str] = set()
    waiting = [function.__code__]
    while waiting:
        code = waiting.pop()
        found.update(code.co_names)
        waiting += [constant for constant in code.co_consts if isinstance(constant, type(code))]
    return found
