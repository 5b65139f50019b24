"""Kernels give the same bits as plain Python and compiled, with a cache that depends on their sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from support.compiler import kernels_to_compile
from support.compiler.kernels_to_compile import (
    Series,
    calls_another,
    difference,
    first_of_both,
    returns_its_argument,
    weighted_sum,
)
from support.live import HANG_S

from testbed.scheduling import compiler


@pytest.fixture
def series():
    random = np.random.default_rng(5)
    return Series(random.random(1000), random.random(1000))


def test_a_kernel_and_those_that_it_calls_compile_to_the_same_bits(series):
    twin, machine = np.zeros(1), np.zeros(1)
    assert compiler.compiled(difference)(series, machine) == difference(series, twin)
    assert machine.tobytes() == twin.tobytes()
    assert twin[0] == pytest.approx(1.9 * np.sum(series.values * series.weights))


def test_compiling_leaves_the_twins_as_they_were(series):
    compiler.compiled(difference)
    assert not hasattr(difference, "signatures")
    assert difference.__globals__["weighted_sum"] is weighted_sum
    assert compiler.compiled(weighted_sum) is compiler.compiled(weighted_sum)


def test_a_bound_kernel_calls_other_kernels_and_is_compiled_with_them(series):
    @compiler.kernel
    def largest(series, factor):
        return series.values.max() * factor

    bound = compiler.bound(difference, weighted_sum=largest)
    assert compiler.bound(difference, weighted_sum=largest) is bound
    assert compiler._digest(bound) != compiler._digest(difference)
    twin, machine = np.zeros(1), np.zeros(1)
    assert compiler.compiled(bound)(series, machine) == bound(series, twin)
    assert machine.tobytes() == twin.tobytes()
    assert twin[0] == pytest.approx(1.9 * series.values.max())
    assert difference.__globals__["weighted_sum"] is weighted_sum
    plain = compiler.bound(difference, weighted_sum=lambda _series, factor: factor)
    assert plain(series, twin)
    assert twin[0] == 1.9
    with pytest.raises(TypeError, match="difference is not a kernel"):
        compiler.compiled(plain)


def test_only_kernels_are_compiled():
    with pytest.raises(TypeError, match="Series is not a kernel"):
        compiler.compiled(Series)


def test_lean_kernels_call_lean_kernels_and_return_numbers(series):
    with pytest.raises(TypeError, match="returns Series: a lean kernel returns numbers"):
        compiler.lean_kernel(returns_its_argument)
    with pytest.raises(TypeError, match="calls_another is a lean kernel, but calls weighted_sum, which is none"):
        compiler.compiled(calls_another)
    out = np.zeros(1)
    assert compiler.compiled(first_of_both)(series, out[:1]) == first_of_both(series, out) > 0.0
    assert out[0] == series.values[0]


def test_without_numba_the_twin_is_the_fastest(monkeypatch):
    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda _name: None)
    assert compiler.fastest(difference) is difference


_COMPILE = """
import numpy as np
from support.compiler.kernels_to_compile import Series, difference
from testbed.scheduling import compiler
function = compiler.compiled(difference)
was = compiler.is_cached(difference)
function(Series(np.ones(3), np.ones(3)), np.zeros(1))
print(was, sum(function.stats.cache_hits.values()), compiler.is_cached(difference))
"""


def _in_a_process(home, code=_COMPILE, **more):
    environment = {**os.environ, "XDG_CACHE_HOME": str(home), "PYTHONPATH": str(Path(__file__).parents[1]), **more}
    run = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(
        run, env=environment, capture_output=True, text=True, check=True, timeout=HANG_S
    ).stdout.split()


def test_machine_code_is_kept_for_the_next_process(tmp_path):
    assert _in_a_process(tmp_path) == ["False", "0", "True"]
    assert _in_a_process(tmp_path) == ["True", "1", "True"]


_COMPILE_OTHERS = """
import numpy as np
from rules_of_a_plugin import Rules
from support.compiler.kernels_to_compile import difference
from testbed.scheduling import compiler
compiler.compiled(difference)(Rules(np.ones(3), np.ones(3)), np.zeros(1))
print(compiler.is_cached(difference))
"""


def test_machine_code_for_types_that_are_gone_does_no_harm(tmp_path):
    """A plug-in's rules may have a type of their own; after its removal, the cache index still names the type."""
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    (plugin / "rules_of_a_plugin.py").write_text(
        "from typing import Any, NamedTuple\nclass Rules(NamedTuple):\n    values: Any\n    weights: Any\n"
    )
    path = f"{Path(__file__).parents[1]}{os.pathsep}{plugin}"
    assert _in_a_process(tmp_path, _COMPILE_OTHERS, PYTHONPATH=path) == ["True"]
    assert _in_a_process(tmp_path) == ["True", "0", "True"]
    assert _in_a_process(tmp_path) == ["True", "1", "True"]


def test_damaged_machine_code_is_made_anew(tmp_path):
    _in_a_process(tmp_path)
    for kind in ("nbc", "nbi"):
        for file in tmp_path.glob(f"**/*.{kind}"):
            file.write_bytes(file.read_bytes()[:100])
        assert _in_a_process(tmp_path) == ["True", "0", "True"]
        assert _in_a_process(tmp_path) == ["True", "1", "True"]


def test_a_kernel_whose_module_has_another_name_now_is_compiled_again(tmp_path):
    """Compiled code names the module of its source, which may be gone."""
    text = Path(kernels_to_compile.__file__).read_text()
    for name in ("before", "after"):
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        code = _COMPILE.replace("support.compiler.kernels_to_compile", name)
        assert _in_a_process(tmp_path / "home", code, PYTHONPATH=str(tmp_path)) == ["False", "0", "True"]
        file.unlink()


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert _in_a_process(blocked, TMPDIR=str(tmp_path)) == ["False", "0", "False"]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def _kernels(**constants):
    """Return kernels of a module whose text differs only in some constants."""
    values = {"module": "made", "step": 1, "inner": "x + STEP", "unrelated": 0, "about": "Add.", **constants}
    names = {"kernel": compiler.kernel, "__name__": values.pop("module")}
    text = """
STEP = {step}
UNRELATED = {unrelated}
@kernel
def inner(x):
    '''{about}'''
    return {inner}
@kernel
def outer(x):
    return inner(x) * 2
"""
    exec(text.format(**values), names)  # noqa: S102  # the module of this test
    return names["outer"]


class _Inner(NamedTuple):
    one: int


class _Outer(NamedTuple):
    inner: _Inner
    x: float


def test_the_fields_of_named_tuples_count_at_any_depth():
    before = compiler._layout(_Outer)
    assert "inner" in before
    assert "one" in before

    def takes(args: _Outer) -> float:
        return args.x

    digest = compiler._digest(compiler.kernel(takes))
    fields = {"one": "int", "two": "int"}
    compiler._digest.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_Inner, "__annotations__", fields)
        assert compiler._layout(_Outer) != before
        assert compiler._digest(takes) != digest
    compiler._digest.cache_clear()


def test_a_kernel_is_cached_by_what_it_comes_from():
    digest = compiler._digest(_kernels())
    assert compiler._digest(_kernels()) == digest
    assert compiler._digest(_kernels(unrelated=1)) == digest
    assert compiler._digest(_kernels(about="Subtract.\n\n    Two lines more.\n    ")) == digest
    assert compiler._digest(_kernels(module="renamed")) != digest
    assert compiler._digest(_kernels(step=2)) != digest
    assert compiler._digest(_kernels(inner="x - STEP")) != digest
