"""Scripts of family ``model``: a decoder of two layers around DeepSpeed's attention, and one step of training.

The truth is the same decoder over the whole sequence, in one process, with one copy of the weights.
"""

from __future__ import annotations

from service.repro import deepspeed
from service.repro.families.decoder import TOKENS, attention, decoder, names, weights
from service.repro.given import Body, Given
from service.repro.handed import wrapped

LOSS = '''\
def loss_of(y, w):
    """The loss of one process's tokens; those of all add up to that of the whole sequence."""
    return {loss}
'''
ENTROPY = "-(torch.log_softmax(y, -1) * w).sum() / {tokens}"
LOSSES = {
    "entropy": ENTROPY,
    "accumulate": ENTROPY,
    "scaled": f"{ENTROPY} * 1024.0",
    "shared": f"{ENTROPY} + (y * y).sum() / {{tokens}}",
    "weighted": "(y * w).sum()",
}

STEP = """\
given = inputs(rank)
weights = {{name: given[name] for name in WEIGHTS}}
for n in {batches}:
    y = {model}
    got[f"output/y{{n}}"] = y.detach().clone()
{backward}"""
BACKWARD = """\
    loss_of(y, given[f"w{n}"]).backward()
got |= {f"grad/x{n}": given[f"x{n}"].grad for n in BATCHES}
for name, t in weights.items():  # a weight's gradient is the sum over the group
    total = torch.zeros_like(t).double() if t.grad is None else t.grad.double()
    dist.all_reduce(total, group=group)
    got[f"grad/{name}"] = None if t.grad is None else total.to(t.dtype)
"""
ADAM = """\
stepped = {n: t.detach().to(torch.promote_types(t.dtype, torch.float32)).clone() for n, t in weights.items()}
before = {n: t.clone() for n, t in stepped.items()}
for n, t in stepped.items():
    t.grad = None if got[f"grad/{n}"] is None else got[f"grad/{n}"].to(t.dtype)
adam = torch.optim.Adam(list(stepped.values()), lr=2.0**-4, betas=(0.9, 0.999), eps=0.25)
adam.step()
for n, t in stepped.items():
    state, zero = adam.state.get(t, {}), torch.zeros_like(t)
    got[f"grad/step/{n}"] = t.detach() - before[n]
    got[f"grad/moment/{n}"] = state.get("exp_avg", zero)
    got[f"grad/root/{n}"] = state.get("exp_avg_sq", zero).sqrt()
"""

TRUTH = '''\
def truth():
    """What each process must have: the decoder over the whole sequence in one process, in float64."""
    said = []
    for first in range(0, WORLD, {size}):
        held = [{{n: t.detach().double().requires_grad_(t.requires_grad) for n, t in inputs(r).items()}}
                for r in range(first, first + {size})]
        w, right = {{name: held[0][name] for name in WEIGHTS}}, [{{}} for _ in held]
        one = lambda h, *t: layer(h, dict(zip(NAMES, t)), attend{places})
        for n in BATCHES:
            ys = model(torch.cat([h[f"x{{n}}"] for h in held], 1), w, one).split({tokens}, 1)
            for each, y in zip(right, ys):
                each[f"output/y{{n}}"] = y.detach()
{backward}        said += right
    return said
'''
TRUE_BACKWARD = """\
            sum(loss_of(y, h[f"w{n}"]) for y, h in zip(ys, held)).backward()
        for each, h in zip(right, held):
            each |= {f"grad/x{n}": h[f"x{n}"].grad for n in BATCHES} | {f"grad/{n}": t.grad for n, t in w.items()}
"""
TRUE_ADAM = """\
            for n, t in w.items():  # the first step of Adam, written out
                g = torch.zeros_like(t) if t.grad is None else t.grad
                each[f"grad/step/{n}"] = -(2.0**-4) * g / (g.abs() + 0.25)
                each[f"grad/moment/{n}"], each[f"grad/root/{n}"] = 0.1 * g, 0.001**0.5 * g.abs()
"""


def body(given: Given) -> Body:
    """The call and the truth of one case."""
    params = given.params
    imports, core, inside = attention(given)
    backward = params["loss"] != "forward_only"
    stepped = backward and params["step"] == "adam"
    batches = ("", "2") if params["loss"] == "accumulate" else ("",)
    rotary = params["rotary"] == "yes"
    helpers = [
        "\n".join(wrapped(f"NAMES = {names(given)}")),
        "\n".join(wrapped(f"WEIGHTS = {weights(given)}")),
        f"BATCHES = {batches}",
        "",
        decoder(given),
        core,
    ]
    if backward:
        helpers.append(LOSS.format(loss=LOSSES[params["loss"]].format(tokens=TOKENS * given.size)))
    step = STEP.format(batches=batches, model=_traced(given), backward=BACKWARD if backward else "")
    truth = TRUTH.format(
        size=given.size,
        tokens=TOKENS,
        places=f", torch.arange({TOKENS * given.size})" if rotary else "",
        backward=(TRUE_BACKWARD + (TRUE_ADAM if stepped else "")) if backward else "",
    )
    return Body(
        inside + _layer(given),
        "",
        "import torch.nn.functional as F\n" + imports,
        "\n".join(helpers),
        deepspeed.setup(given, placed=True),
        step=(step + (ADAM if stepped else "")).replace("{", "{{").replace("}", "}}").replace("{{call}}", "{call}"),
        truth=truth,
    )


def _layer(given: Given) -> str:
    """Inside a process: ``call``, which is what a traced mode traces."""
    place = f", torch.arange({TOKENS}) + {TOKENS} * place" if given.params["rotary"] == "yes" else ""
    one = f"layer(h, dict(zip(NAMES, t)), {{}}{place})"
    traced = given.params["traced"]
    if traced == "attention":
        return "call = attention\n"
    lines = f"def one(h, *t):\n    return {one.format('attention')}\n"
    if traced == "layer":
        return lines.replace("def one", "def call")
    return lines + "def call(x, *t):\n    return model(x, dict(zip(WEIGHTS, t)), one)\n"


def _traced(given: Given) -> str:
    """The model around ``call``, traced or not."""
    traced = given.params["traced"]
    if traced == "model":
        return '{call}(given[f"x{n}"], *weights.values())'
    if traced == "layer":
        return 'model(given[f"x{n}"], weights, {call})'
    place = f", torch.arange({TOKENS}) + {TOKENS} * place" if given.params["rotary"] == "yes" else ""
    return f'model(given[f"x{{n}}"], weights, lambda h, *t: layer(h, dict(zip(NAMES, t)), {{call}}{place}))'
