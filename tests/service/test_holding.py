"""Collectives found in source that is never run: hand-written packages, each with one way of writing things."""

from __future__ import annotations

import textwrap

import pytest

from service.holding import Held, held
from service.source import module_name, read

COMM = "def all_reduce(x, group=None):\n    return x\n"
FUNCTION = """
    import torch
    {imports}
    class Step({base}):
        @staticmethod
        def forward(ctx, x):
            {body}
            return x
        @staticmethod
        def backward(ctx, g):
            return g
"""


def find(listed: tuple[str, ...] = (), **files: str) -> dict[str, Held]:
    """What a package ``lib`` of these files (``a__b`` is a/b.py) holds, by name."""
    sources = {"lib/" + name.replace("__", "/") + ".py": textwrap.dedent(text) for name, text in files.items()}
    return {one.name: one for one in held(sources, [f"lib/{name}.py" for name in listed])}


def function(imports: str = "", base: str = "torch.autograd.Function", body: str = "pass") -> str:
    return FUNCTION.format(imports=imports, base=base, body=body)


@pytest.mark.parametrize(
    ("imports", "body"),
    [
        ("import torch.distributed as dist", "dist.all_to_all_single(x, x)"),
        ("import torch.distributed", "torch.distributed.all_to_all_single(x, x)"),
        ("from torch import distributed", "distributed.all_to_all_single(x, x)"),
        ("from torch.distributed import all_to_all_single as a2a", "a2a(x, x)"),
        ("from torch.distributed.nn import functional", "functional.all_to_all_single(x, x)"),
        ("", "import torch.distributed as inside; inside.all_to_all_single(x, x)"),
        ("import torch.distributed as dist\n    swap = dist.all_to_all_single", "swap(x, x)"),
        ("import torch.distributed as dist", "run = dist.all_to_all_single"),
        ("import torch.distributed as dist", "(lambda: dist.all_to_all_single(x, x))()"),
        ("try:\n        import torch.distributed as dist\n    except ImportError:\n        dist = None",
         "dist.all_to_all_single(x, x)"),
    ],
)  # fmt: skip
def test_a_collective_is_found_under_whatever_name(imports: str, body: str) -> None:
    found = find(a=function(imports=imports, body=body))
    assert {name: (one.kind, one.collectives) for name, one in found.items()} == {
        "Step": ("function", ("all_to_all_single",))
    }


@pytest.mark.parametrize(
    ("imports", "body"),
    [
        ("import numpy as dist", "dist.all_reduce(x)"),
        ("import torch.distributed as dist", "dist.get_rank()"),
        ("import torch.distributed as dist", "dist.barrier()"),
        ("from lib.helpers import comm", "comm.size(x)"),
        ("", "x.all_reduce()"),
    ],
)
def test_what_only_looks_like_one_is_none(imports: str, body: str) -> None:
    assert find(a=function(imports=imports, body=body), helpers="def comm():\n    pass\n") == {}


def test_a_parameter_hides_the_module_of_its_name() -> None:
    text = "import torch.distributed as dist\nimport torch\n" + textwrap.dedent(function()).replace(
        "def forward(ctx, x)", "def forward(ctx, x, dist)"
    ).replace("pass", "dist.all_reduce(x)")
    assert find(a=text) == {}


@pytest.mark.parametrize("base", ["Function", "autograd.Function", "Base", "other.Base"])
def test_a_base_is_recognised_through_aliases_and_the_package_own_classes(base: str) -> None:
    imports = (
        "from torch.autograd import Function\n    from torch import autograd\n    import torch.distributed as dist\n"
    )
    imports += "    from lib.other import Base\n    from lib import other"
    found = find(
        a=function(imports=imports, base=base, body="dist.all_reduce(x)"),
        other="import torch.autograd.function as f\nclass Base(f.Function):\n    pass\n",
    )
    assert set(found) == {"Step"}


def test_a_class_that_is_no_autograd_function_is_not_listed() -> None:
    assert find(a=function("import torch.distributed as dist", "torch.nn.Module", "dist.all_reduce(x)")) == {}


def test_calls_are_followed_within_a_module_through_methods_and_across_the_package_own_modules() -> None:
    found = find(
        comm__inner=COMM,
        comm____init__="from .inner import *\n",
        helpers="""
            from lib import comm as c
            from .deep import Mover
            def outer(x):
                def nested():
                    return c.all_reduce(x)
                return nested()
            def quiet(x):
                return x
        """,
        deep="""
            import torch
            import lib.comm as dist
            class Mover:
                def __init__(self):
                    self.start()
                def start(self):
                    return dist.reduce_scatter(1)
            class Fn(torch.autograd.Function):
                def forward(ctx, x):
                    return x
                def backward(ctx, g):
                    return dist.all_gather(g)
        """,
        a="""
            import torch
            from lib.helpers import outer as renamed, quiet, Mover
            from . import deep
            class Follows(torch.autograd.Function):
                def forward(ctx, x):
                    return renamed(x)
            class Quiet(torch.autograd.Function):
                def forward(ctx, x):
                    return quiet(x)
            class Makes(torch.autograd.Function):
                def forward(ctx, x):
                    return Mover()
            class Applies(torch.autograd.Function):
                def backward(ctx, g):
                    return deep.Fn.apply(g)
            class Own(torch.autograd.Function):
                def forward(ctx, x):
                    return Own.swap(x)
                @classmethod
                def swap(cls, x):
                    return cls.other(x)
                @staticmethod
                def other(x):
                    return deep.dist.broadcast(x)
            def factory():
                class Inside(torch.autograd.Function):
                    def forward(ctx, x):
                        return renamed(x)
                return Inside
        """,
    )
    assert {name: one.collectives for name, one in found.items()} == {
        "Follows": ("all_reduce",),
        "Makes": ("reduce_scatter",),
        "Applies": ("all_gather",),
        "Own": ("broadcast",),
        "Fn": ("all_gather",),
        "factory.Inside": ("all_reduce",),
    }


def test_a_name_that_a_module_hands_on_is_found_where_it_is_defined() -> None:
    found = find(
        a=function("from lib.facade import move", body="move(x)"),
        facade="from .inner import *\n",
        inner="from lib.deepest import move\n",
        deepest="import torch.distributed as dist\ndef move(x):\n    return dist.all_reduce(x)\n",
    )
    assert found["Step"].collectives == ("all_reduce",)


def test_modules_that_import_each_other_in_a_ring_end() -> None:
    found = find(a=function("from lib.b import thing", body="thing(x)"), b="from lib.c import thing\n",
                 c="from lib.b import thing\n")  # fmt: skip
    assert found == {}


def test_functions_that_call_each_other_in_a_ring_end() -> None:
    found = find(
        a="""
            import torch, torch.distributed as dist
            def one(x): return two(x)
            def two(x): return one(x) if x else dist.all_reduce(x)
            class Step(torch.autograd.Function):
                def forward(ctx, x): return one(x)
        """
    )
    assert found["Step"].collectives == ("all_reduce",)


OPERATORS = {
    "decorated": """
        @torch.library.custom_op("my::swap", mutates_args=())
        def swap(x):
            return dist.all_to_all_single(x, x)
    """,
    "called": """
        def body(x):
            return dist.all_to_all_single(x, x)
        swap = torch.library.custom_op("my::swap", body, mutates_args=())
    """,
    "only its derivative": """
        @torch.library.custom_op("my::swap", mutates_args=())
        def swap(x):
            return x.clone()
        def back(ctx, g):
            return dist.all_to_all_single(g, g)
        torch.library.register_autograd("my::swap", back)
    """,
    "its derivative by the object": """
        @torch.library.custom_op("my::swap", mutates_args=())
        def swap(x):
            return x.clone()
        def back(ctx, g):
            return dist.all_to_all_single(g, g)
        swap.register_autograd(back)
    """,
    "a kernel by the object": """
        @torch.library.custom_op("my::swap", mutates_args=())
        def swap(x):
            return x.clone()
        @swap.register_kernel("cpu")
        def _(x):
            return dist.all_to_all_single(x, x)
    """,
    "a library": """
        lib = torch.library.Library("my", "DEF")
        lib.define("swap(Tensor x) -> Tensor")
        def body(x):
            return dist.all_to_all_single(x, x)
        lib.impl("swap", body, "CPU")
    """,
    "a library's decorator": """
        lib = torch.library.Library("my", "FRAGMENT")
        lib.define("swap(Tensor x) -> Tensor")
        @torch.library.impl(lib, "swap", "CPU")
        def body(x):
            return dist.all_to_all_single(x, x)
    """,
    "a name in a constant": """
        NAME = "my::swap"
        @torch.library.impl(NAME, "cpu")
        def body(x):
            return dist.all_to_all_single(x, x)
    """,
    "another operator's": """
        @torch.library.custom_op("my::inner", mutates_args=())
        def inner(x):
            return dist.all_to_all_single(x, x)
        @torch.library.custom_op("my::swap", mutates_args=())
        def swap(x):
            return torch.ops.my.inner.default(x)
    """,
}


@pytest.mark.parametrize("how", OPERATORS)
def test_an_operator_is_found_however_it_is_registered(how: str) -> None:
    text = "import torch\nimport torch.distributed as dist\n" + textwrap.dedent(OPERATORS[how])
    found = find(a=text)
    assert (found["my::swap"].kind, found["my::swap"].collectives) == ("operator", ("all_to_all_single",))


def test_a_fake_is_no_body_and_an_operator_without_a_collective_is_not_listed() -> None:
    text = """
        import torch
        import torch.distributed as dist
        @torch.library.custom_op("my::swap", mutates_args=())
        def swap(x):
            return x
        @torch.library.register_fake("my::swap")
        def fake(x):
            return dist.all_to_all_single(x, x)
    """
    assert find(a=text) == {}


def test_an_operator_that_no_python_defines_is_known_by_its_name() -> None:
    found = find(
        a="""
            import torch
            def use(x):
                torch.ops.aten.add(x, x)
                torch.ops.my.plain(x)
                return torch.ops.my.allgather_param.default(x)
            class Step(torch.autograd.Function):
                def forward(ctx, x):
                    return torch.ops._c10d_functional.all_reduce(x, "sum", "0")
        """
    )
    assert {name: one.kind for name, one in found.items()} == {
        "my::allgather_param": "native operator",
        "Step": "function",
    }


def test_public_names_of_listed_modules_are_there_with_what_they_reach() -> None:
    found = find(
        listed=("a",),
        a="""
            import torch
            import torch.distributed as dist
            from lib.b import borrowed
            CONSTANT = 3
            def _private(): ...
            def plain(x): return x
            class Layer:
                def step(self, x): return dist.all_reduce(x)
            class Step(torch.autograd.Function):
                def forward(ctx, x): return dist.broadcast(x)
        """,
        b="def borrowed(): ...\n",
    )
    assert {name: (one.kind, one.collectives, one.public) for name, one in found.items()} == {
        "plain": ("name", (), True),
        "Layer": ("name", ("all_reduce",), True),
        "Step": ("function", ("broadcast",), True),
    }


def test_a_file_that_is_not_python_is_passed_over() -> None:
    assert set(find(a=function("import torch.distributed as dist", body="dist.all_reduce(x)"), b="def (:\n")) == {
        "Step"
    }
    assert read("lib/a.py", "\0") is None


def test_modules_are_named_by_their_path() -> None:
    assert module_name("lib/sub/a.py") == "lib.sub.a"
    assert module_name("lib/sub/__init__.py") == "lib.sub"
