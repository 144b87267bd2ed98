"""Scripts of family ``torch-itself``: torch's collectives, differentiated in each of the ways that torch offers.

The truth is that each is a linear map of what all processes hold, written in one line of plain torch.
"""

from __future__ import annotations

from service.repro.families.torch_collectives import APIS, FUNCTIONAL, FUNCTIONS, NN
from service.repro.given import Body, Given, NothingToReproduce
from service.repro.handed import wrapped

RACING = {("all_gather", "functional"), ("all_gather", "functional_autograd")}
"""Collective and way of which some calls raise and others do not: there is a race."""
TRIES = 24

DENSE = {
    "all_reduce": (
        "The sum of what all hold, on each.",
        'return [torch.stack([h["x"] for h in held]).sum(0)] * len(held)',
    ),
    "all_gather": (
        "What all hold, joined, on each.",
        'return [torch.cat([h["x"] for h in held])] * len(held)',
    ),
    "reduce_scatter": (
        "The sum of what all hold, each its own part.",
        'return list(torch.stack([h["x"] for h in held]).sum(0).chunk(len(held)))',
    ),
    "broadcast": (
        "What the first holds, on each; nothing of what the others hold, whose gradient is zero.",
        'return [held[0]["x"] + 0 * h["x"] for h in held]',
    ),
}
ALL_TO_ALL = '''\
def dense(held):
    """Part j of process i becomes part i of process j."""
    parts = [h["x"].{cut} for place, h in enumerate(held)]
    return [torch.cat([mine[target] for mine in parts]) for target in range(len(held))]
'''
ROWS = """\
def rows(source, target):  # how many rows of process ``source`` are for process ``target``
    return 1 + (source + 2 * target) % 3
"""
COUNTS = """\
leaving = [rows(place, target) for target in range({group})]
arriving = [rows(source, place) for source in range({group})]
"""
UNWRITTEN = """\
torch.use_deterministic_algorithms(True, warn_only=True)  # new memory is filled with NaN: who reads it is seen
"""
RACE = """\
for _ in range({tries}):  # some calls raise and others do not
    call(inputs(rank)["x"]).detach().clone()
"""

IGNORED = -100
LIVE = (5, 2, 6, 1, 4, 3, 6, 2)
"""Tokens that count, by place, where they are uneven."""
MEAN = '''\
def dense(held):
    """The mean over all tokens that count, on each."""
    x, y = torch.cat([h["x"] for h in held]), torch.tensor(TARGETS).flatten()
    return [torch.nn.functional.nll_loss(x, y, ignore_index=-100)] * len(held)
'''
RECIPES = {
    "all_gather": """\
def call(x):
    y = torch.tensor(TARGETS[place])
    means = nn.all_gather(torch.nn.functional.nll_loss(x, y, ignore_index=-100), group=group)
    counts = nn.all_gather((y != -100).sum(), group=group)
    weighted = [mean * count for mean, count in zip(means, counts) if count > 0]
    return torch.stack(weighted).sum() / torch.stack(list(counts)).sum()
""",
    "all_reduce": """\
def call(x):
    y = torch.tensor(TARGETS[place])
    total = nn.all_reduce(torch.nn.functional.nll_loss(x, y, ignore_index=-100, reduction="sum"), group=group)
    return total / nn.all_reduce((y != -100).sum(), group=group)
""",
}

ALL_TO_ALL_OF_LISTS = """\
def all_to_all(outputs, parts, group=None, async_op=False):  # which gloo has not in every version
    arrived = torch.empty(len(parts), parts[0].numel(), dtype=parts[0].dtype)
    dist.all_to_all_single(arrived, torch.stack([part.reshape(-1) for part in parts]), group=group)
    for output, part in zip(outputs, arrived):
        output.copy_(part.reshape(output.shape))

dist.get_backend = lambda group=None: dist.Backend.NCCL  # torch's branches for NCCL are taken
dist.all_to_all = all_to_all
"""
REDUCE_SCATTER = """\
def reduce_scatter(output, parts, op=dist.ReduceOp.SUM, group=None, async_op=False):  # which gloo has not
{refuse}    arrived = torch.empty(len(parts), output.numel(), dtype=output.dtype)
    dist.all_to_all_single(arrived, torch.stack([part.reshape(-1) for part in parts]), group=group)
    output.as_strided((output.numel(),), (1,)).copy_(arrived.sum(0))

dist.get_backend = lambda group=None: dist.Backend.NCCL  # torch's branches for NCCL are taken
dist.reduce_scatter = reduce_scatter
"""
REFUSE = """\
    if not (output.is_contiguous() or output.is_contiguous(memory_format=torch.channels_last)):
        raise ValueError("Tensors must be contiguous")  # as for NCCL
"""


def body(given: Given) -> Body:
    """The call and the truth of one case."""
    aggregated = given.case.probe == "loss_aggregation"
    call, dense, helpers = _aggregation(given) if aggregated else _collective(given)
    if given.row.transport == "nccl-dispatch":
        helpers = "\n".join(filter(None, [_stand_in(given), helpers]))
    if not given.traced:
        call += UNWRITTEN
    imports = "".join(line for name, line in (("nn.", NN), ("functional.", FUNCTIONAL)) if _uses(name, call + helpers))
    return Body(call, dense, imports, helpers)


def _stand_in(given: Given) -> str:
    """What torch's branch for NCCL calls and gloo has not, made of an all-to-all."""
    if given.params.get("collective") == "all_to_all":
        return ALL_TO_ALL_OF_LISTS
    return REDUCE_SCATTER.format(refuse=REFUSE if given.params.get("cotangent", "contiguous") != "contiguous" else "")


def _uses(name: str, text: str) -> bool:
    return any(word.startswith(name) for word in text.replace("(", " ").replace("=", " ").split())


def _collective(given: Given) -> tuple[str, str, str]:
    params, group = given.params, "GROUP" if given.size < given.world else "WORLD"
    way = APIS.get((params["collective"], params["api"]))
    if way is None:
        raise NothingToReproduce(f"there is no script for {params['collective']} by {params['api']} yet")
    uneven = params["splits"] == "uneven"
    values = {
        "leaving": "leaving" if uneven else "None",
        "arriving": "arriving" if uneven else "None",
        "empty": "x.new_empty((sum(arriving), *x.shape[1:]))" if uneven else "x.new_empty(x.shape)",
        "group": group,
        "root": "rank - place" if params["root"] == "global" else "0",
    }
    call = way.call.format(**values)
    setup = (COUNTS.format(group=group) if uneven else "") + f"def call(x):\n{_indented(call)}"
    helpers = FUNCTIONS[way.function] if way.function else ""
    if (params["collective"], params["api"]) in RACING and not given.traced:
        setup += RACE.format(tries=TRIES)
    if params["collective"] == "all_to_all":
        cut = "split([rows(place, target) for target in range(len(held))])" if uneven else "chunk(len(held))"
        parts = ALL_TO_ALL.format(cut=cut)
        dense = parts if uneven else parts.replace("for place, h in enumerate(held)", "for h in held")
        return setup, dense, (ROWS + "\n" if uneven else "") + helpers
    said, line = DENSE[params["collective"]]
    return setup, f'def dense(held):\n    """{said}"""\n    {line}\n', helpers


def _aggregation(given: Given) -> tuple[str, str, str]:
    tokens = given.params["tokens"]
    live = [4] * given.size if tokens == "even" else list(LIVE[: given.size])
    if tokens == "one_empty":
        live[-1] = 0
    targets = [
        [(2 * token + place) % 5 if (5 * token + place) % 6 < live[place] else IGNORED for token in range(6)]
        for place in range(given.size)
    ]
    helpers = "\n".join(wrapped(f"TARGETS = {targets}  # the class of each token; {IGNORED}: it does not count"))
    return RECIPES[given.params["recipe"]], MEAN, helpers


def _indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.strip("\n").splitlines())
