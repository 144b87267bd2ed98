"""The lines that call torch's collectives, per collective and way of calling it: data for :mod:`torch_itself`."""

from __future__ import annotations

from dataclasses import dataclass

NN = "import torch.distributed.nn.functional as nn\n"
FUNCTIONAL = "import torch.distributed._functional_collectives as functional\n"


@dataclass(frozen=True)
class Way:
    """call: the lines of ``call(x)``, with fields to fill in; function: an autograd function in :data:`FUNCTIONS`."""

    call: str
    function: str = ""


APIS: dict[tuple[str, str], Way] = {
    ("all_to_all", "buffer_in_function"): Way(
        "return AllToAll.apply(x, group, {arriving}, {leaving})", "all_to_all_buffer"
    ),
    ("all_to_all", "nn_in_function"): Way("return AllToAll.apply(x, group)", "all_to_all_nn"),
    ("all_to_all", "functional_in_function"): Way("return AllToAll.apply(x, group)", "all_to_all_functional"),
    ("all_to_all", "list_in_function"): Way("return AllToAll.apply(x, group, {group})", "all_to_all_list"),
    ("all_to_all", "nn"): Way("return nn.all_to_all_single({empty}, x, {arriving}, {leaving}, group=group)"),
    ("all_to_all", "functional"): Way("return functional.all_to_all_single(x, {arriving}, {leaving}, group)"),
    ("all_to_all", "functional_autograd"): Way(
        "return functional.all_to_all_single_autograd(x, {arriving}, {leaving}, group)"
    ),
    ("all_to_all", "functional_autograd_waited"): Way(
        "y = functional.all_to_all_single_autograd(x, {arriving}, {leaving}, group)\nreturn functional.wait_tensor(y)"
    ),
    ("all_to_all", "nn_list"): Way(
        "parts = list(x.chunk({group}))\n"
        "return torch.cat(nn.all_to_all([torch.empty_like(part) for part in parts], parts, group=group))"
    ),
    ("all_reduce", "nn"): Way("return nn.all_reduce(x, group=group)"),
    ("all_reduce", "functional"): Way('return functional.all_reduce(x, "sum", group)'),
    ("all_reduce", "buffer_in_function"): Way("return AllReduce.apply(x, group)", "all_reduce_buffer"),
    ("all_gather", "nn"): Way("return torch.cat(nn.all_gather(x, group=group))"),
    ("all_gather", "functional"): Way("return functional.all_gather_tensor(x, 0, group)"),
    ("all_gather", "functional_autograd"): Way("return functional.all_gather_tensor_autograd(x, 0, group)"),
    ("all_gather", "buffer_in_function"): Way("return AllGather.apply(x, group, {group}, place)", "all_gather_buffer"),
    ("reduce_scatter", "nn"): Way(
        "parts = list(x.chunk({group}))\nreturn nn.reduce_scatter(torch.empty_like(parts[0]), parts, group=group)"
    ),
    ("reduce_scatter", "functional"): Way('return functional.reduce_scatter_tensor(x, "sum", 0, group)'),
    ("reduce_scatter", "functional_autograd"): Way(
        'return functional.reduce_scatter_tensor_autograd(x, "sum", 0, group)'
    ),
    ("reduce_scatter", "buffer_in_function"): Way(
        "return ReduceScatter.apply(x, group, {group})", "reduce_scatter_buffer"
    ),
    ("broadcast", "nn"): Way("root = {root}\nreturn nn.broadcast(x, root, group=group)"),
    ("broadcast", "functional"): Way("root = {root}\nreturn functional.broadcast(x, root, group)"),
    ("broadcast", "buffer_in_function"): Way(
        "root = {root}\nreturn Broadcast.apply(x, group, root, place == 0)", "broadcast_buffer"
    ),
}

FUNCTIONS = {
    "all_to_all_buffer": """\
class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, arriving, leaving):
        ctx.group, ctx.arriving, ctx.leaving, ctx.shape = group, arriving, leaving, x.shape
        y = x.new_empty((sum(arriving), *x.shape[1:])) if arriving else x.new_empty(x.shape)
        dist.all_to_all_single(y, x, arriving, leaving, group=group)
        return y

    @staticmethod
    def backward(ctx, grad):
        back = grad.new_empty(ctx.shape)
        dist.all_to_all_single(back, grad, ctx.leaving, ctx.arriving, group=ctx.group)
        return back, None, None, None
""",
    "all_to_all_nn": """\
class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return nn.all_to_all_single(x.new_empty(x.shape), x, group=group)

    @staticmethod
    def backward(ctx, grad):
        return nn.all_to_all_single(grad.new_empty(grad.shape), grad, group=ctx.group), None
""",
    "all_to_all_functional": """\
class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return functional.wait_tensor(functional.all_to_all_single(x, None, None, group))

    @staticmethod
    def backward(ctx, grad):
        return functional.wait_tensor(functional.all_to_all_single(grad, None, None, ctx.group)), None
""",
    "all_to_all_list": """\
class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, ranks):
        ctx.group, ctx.ranks = group, ranks
        y = x.new_empty(x.shape)
        dist.all_to_all(list(y.chunk(ranks)), list(x.chunk(ranks)), group=group)
        return y

    @staticmethod
    def backward(ctx, grad):
        back = grad.new_empty(grad.shape)
        dist.all_to_all(list(back.chunk(ctx.ranks)), list(grad.chunk(ctx.ranks)), group=ctx.group)
        return back, None, None
""",
    "all_reduce_buffer": """\
class AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        y = x.clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx, grad):
        back = grad.clone()
        dist.all_reduce(back, group=ctx.group)
        return back, None
""",
    "all_gather_buffer": """\
class AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, ranks, place):
        ctx.group, ctx.ranks, ctx.place = group, ranks, place
        y = x.new_empty((ranks * x.shape[0], *x.shape[1:]))
        dist.all_gather_into_tensor(y, x, group=group)
        return y

    @staticmethod
    def backward(ctx, grad):
        whole = grad.clone()
        dist.all_reduce(whole, group=ctx.group)
        return whole.chunk(ctx.ranks)[ctx.place].clone(), None, None, None
""",
    "reduce_scatter_buffer": """\
class ReduceScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, ranks):
        ctx.group, ctx.shape = group, x.shape
        y = x.new_empty((x.shape[0] // ranks, *x.shape[1:]))
        dist.reduce_scatter_tensor(y, x, group=group)
        return y

    @staticmethod
    def backward(ctx, grad):
        back = grad.new_empty(ctx.shape)
        dist.all_gather_into_tensor(back, grad, group=ctx.group)
        return back, None, None
""",
    "broadcast_buffer": """\
class Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group, root, is_root):
        ctx.group, ctx.root, ctx.is_root = group, root, is_root
        y = x.clone()
        dist.broadcast(y, root, group=group)
        return y

    @staticmethod
    def backward(ctx, grad):
        back = grad.clone()
        dist.reduce(back, ctx.root, group=ctx.group)
        return back if ctx.is_root else torch.zeros_like(back), None, None, None
""",
}
