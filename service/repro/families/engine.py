"""Scripts of family ``engine``: the decoder of family ``model`` in DeepSpeed's training engine, and one step of it.

The truth is the same decoder over the whole sequences, in one process: the loss of each group, averaged over the
groups, and counted as often as the way of putting it together has it.
"""

from __future__ import annotations

from fractions import Fraction

from service.repro import deepspeed
from service.repro.families.decoder import TOKENS, attention, decoder, names, weights
from service.repro.families.loss import ENTROPY, NN, RECIPES, RESULTS
from service.repro.given import Body, Given
from service.repro.handed import wrapped

STATE = "deepspeed.runtime.sequence_parallel.parallel_state_sp"
MODULES = '''\
class Part(torch.nn.Module):
    """Weights of its own, by name, and what is done with them."""
    def __init__(self, w, function):
        super().__init__()
        self.names, self.function = list(w), function
        for name, t in w.items():
            self.register_parameter(name, torch.nn.Parameter(t.detach().clone()))

    def forward(self, x):
        return self.function(x, *(getattr(self, name) for name in self.names))

def network(w, one):
    """The decoder as modules: an embedding, layers, and what follows them."""
    layers = [Part({k.partition(".")[2]: t for k, t in w.items() if k.startswith(f"layer{n}.")}, one) for n in range(2)]
    first = Part({"embed": w["embed"]}, lambda x, embed: x @ embed)
    last = Part({n: w[n] for n in ("norm", "head")}, lambda h, norm, head: F.linear(normed(h, norm), head))
    return torch.nn.Sequential(first, *layers, last)
'''
UNIT = """\
replicas = [dist.new_group([r for r in range(WORLD) if r % {size} == n]) for n in range({size})][place]
alone = [dist.new_group([r]) for r in range(WORLD)][rank]
answers = {{
    "sequence_parallel": (place, {size}, group), "data_parallel": (rank // {size}, {count}, replicas),
    "sequence_data_parallel": (rank, WORLD, dist.group.WORLD), "model_parallel": (0, 1, alone),
}}
mpu = types.SimpleNamespace()  # as Megatron has it
for kind, values in answers.items():
    for name, value in zip(("rank", "world_size", "group"), values):
        setattr(mpu, f"get_{{kind}}_{{name}}", lambda value=value: value)
told = {{"mpu": mpu}}
"""
TOLD = {
    "state": "import {module} as state\nstate.initialize_sequence_parallel({size})\ntold = {{'mpu': state}}\n",
    "mesh": "deepspeed.utils.groups.mpu = None\ntold = {{'mesh_param': ({count}, {size})}}\n",
}
ENGINE = """\
given = inputs(rank)
weights = {{name: given[name] for name in WEIGHTS}}
os.environ["LOCAL_RANK"] = str(rank)
{made}
adam = torch.optim.Adam(net.parameters(), lr=2.0**-4, betas=(0.9, 0.999), eps=0.25)
engine = deepspeed.initialize(model=net, optimizer=adam, config=CONFIG, **told)[0]
parameters = dict(zip(WEIGHTS, net.parameters()))
for n in BATCHES:
    y = engine(given[f"x{{n}}"])
    got[f"output/y{{n}}"] = y.detach().clone()
    number = inner(y, given["labels"])
    got[f"output/loss{{n}}"] = number.detach().clone()
    engine.backward(number)
    if not engine.is_gradient_accumulation_boundary():
        engine.step()
"""
GRADIENTS = """\
for name, t in parameters.items():
    whole = deepspeed.utils.safe_get_full_grad(t)
    got[f"grad/{name}"] = None if whole is None else whole.detach().clone()
"""
STEPPED = """\
engine.step()
groups = list(zip(*(getattr(engine.optimizer, name, ()) for name in ("fp16_groups", "fp32_groups"))))  # wide copies
for name, t in parameters.items():
    whole, zero = deepspeed.utils.safe_get_full_fp32_param(t), torch.zeros_like(given[name]).detach()
    held = next((wide for group in groups for narrow, wide in zip(*group) if narrow is t), t)
    got[f"grad/step/{name}"] = (held.detach() if whole is None else whole) - given[name].detach()
    for key, role in (("exp_avg", "moment"), ("exp_avg_sq", "root")):
        state = deepspeed.utils.safe_get_full_optimizer_state(t, key)
        if state is None:
            state = getattr(engine.optimizer, "state", {}).get(held, {}).get(key, zero)
        got[f"grad/{role}/{name}"] = state.detach().clone() if role == "moment" else state.detach().sqrt()
"""
OWN = {
    "local": 'def inner(x, t):\n    return entropy(x, t, "sum") / (t != -100).sum().clamp(min=1)\n',
    "in_place": (
        'def inner(x, t):\n    total, count = entropy(x, t, "sum").clone(), (t != -100).sum()\n'
        "    dist.all_reduce(total, group=group)\n    dist.all_reduce(count, group=group)\n    return total / count\n"
    ),
}

TRUTH = '''\
def truth():
    """What each process must have: the decoder over whole sequences in one process, in float64."""
    wide = lambda t: t.detach().double() if t.is_floating_point() else t
    held = [{{n: wide(t) for n, t in inputs(r).items()}} for r in range(WORLD)]
    w, right, objective = {{name: held[0][name].requires_grad_() for name in WEIGHTS}}, [{{}} for _ in held], 0
    one = lambda h, *t: layer(h, dict(zip(NAMES, t)), attend)
    for first in range(0, WORLD, {size}):
        members = range(first, first + {size})
        for n in BATCHES:
            ys = model(torch.cat([held[r][f"x{{n}}"] for r in members], 1), w, one).split({tokens}, 1)
            sums = [entropy(y, held[r]["labels"], "sum") for r, y in zip(members, ys)]
            counts = [(held[r]["labels"] != -100).sum() for r in members]
            means = [total / count.clamp(min=1) for total, count in zip(sums, counts)]
            whole = {whole}
            objective = objective + whole * {times} / {parts}
            for r, y, mean in zip(members, ys, means):
                right[r] |= {{f"output/y{{n}}": y.detach(), f"output/loss{{n}}": {own}.detach()}}
    objective.backward()
    for each in right:
{looked}    return right
'''
LOOK_GRADIENT = '        each |= {f"grad/{n}": t.grad for n, t in w.items()}\n'
LOOK_STEP = """\
        for n, t in w.items():  # the first step of Adam, written out
            each[f"grad/step/{n}"] = -(2.0**-4) * t.grad / (t.grad.abs() + 0.25)
            each[f"grad/moment/{n}"], each[f"grad/root/{n}"] = 0.1 * t.grad, 0.001**0.5 * t.grad.abs()
"""


def body(given: Given) -> Body:
    """The call and the truth of one case."""
    params = given.params
    imports, core, inside = attention(given)
    batches = ("", "2") if params["passes"] == "two" else ("",)
    ranks = params["recipe"] == "local"
    helpers = [
        "\n".join(wrapped(f"NAMES = {names(given)}")),
        "\n".join(wrapped(f"WEIGHTS = {weights(given)}")),
        f"BATCHES = {batches}",
        *_config(given, len(batches)),
        "",
        decoder(given),
        core,
        ENTROPY,
        MODULES,
    ]
    truth = TRUTH.format(
        size=given.size,
        tokens=TOKENS,
        whole="torch.stack(means).mean()" if ranks else "sum(sums) / sum(counts)",
        own="mean" if ranks else "whole",
        times=_times(given),
        parts=given.world // given.size * len(batches),
        looked=LOOK_STEP if params["look"] == "step" else LOOK_GRADIENT,
    )
    call = inside + "def call(h, *t):\n    return layer(h, dict(zip(NAMES, t)), attention)\n"
    nn = NN if params["recipe"] in RECIPES else ""
    setup = deepspeed.setup(given, placed=True) + _told(given)
    step = _loss(given) + ENGINE.format(made=_made(given)) + (STEPPED if params["look"] == "step" else GRADIENTS)
    escaped = step.replace("{", "{{").replace("}", "}}").replace("{{call}}", "{call}")
    imported = f"import torch.nn.functional as F\n{nn}{imports}"
    return Body(call, "", imported, "\n".join(helpers), setup, step=escaped, truth=truth)


def _times(given: Given) -> str:
    """How many times the loss of the whole sequence an engine's gradient is that of."""
    times = Fraction(1 if given.params["recipe"] == "in_place" else given.size)
    if given.params["stage"] == "3" and given.params["scatter"] == "on":
        times /= given.size
    return str(times)


def _loss(given: Given) -> str:
    recipe = given.params["recipe"]
    return OWN[recipe] if recipe in OWN else RECIPES[recipe].format(result=RESULTS[recipe, "mean"])


def _made(given: Given) -> str:
    """How the network comes to be."""
    if given.params["made"] != "partitioned":
        return "net = network(weights, {call})"
    group = 'data_parallel_group=told["mpu"].get_sequence_data_parallel_group()'
    return (
        f'with deepspeed.zero.Init({group}, config_dict_or_path=CONFIG, mpu=told["mpu"]):\n'
        "    net = network(weights, {call})"
    )


def _told(given: Given) -> str:
    """How the engine is told which ranks share a sequence."""
    values = {"size": given.size, "count": given.world // given.size, "module": STATE}
    return (UNIT if given.params["wiring"] == "unit" else TOLD[given.params["wiring"]]).format(**values)


def _config(given: Given, passes: int) -> list[str]:
    params, bucket = given.params, 2**16
    zero = {
        "stage": int(params["stage"]),
        "reduce_scatter": params["scatter"] == "on",
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
    }
    if params["stage"] == "3":
        zero |= {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": 0}
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": passes,
        "gradient_clipping": 0.0,
        "steps_per_print": 10**9,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": zero,
    }
    if params["dtype"] == "bfloat16":
        config["bf16"] = {"enabled": True}
    return wrapped(f"CONFIG = {config}")
