"""The decoder of family ``model`` as a module, for engines that want one.

On the straight line this stands inside jobs, under :mod:`jobs.probes.engine.run`. It is cut as models are: an
embedding, layers, and what follows them, each with its own weights, since an engine may fetch those module by module.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from jobs.probes.model.decoder import Function, normed, project
from jobs.probes.model.shapes import LAYERS

Named = dict[str, torch.Tensor]


class _Part(torch.nn.Module):
    """A module with weights of its own, by name."""

    def __init__(self, weights: Named) -> None:
        super().__init__()
        self._named = tuple(weights)
        for name, value in weights.items():
            self.register_parameter(name, torch.nn.Parameter(value.detach().clone()))

    def weights(self) -> Sequence[torch.Tensor]:
        """The weights in their order."""
        return [getattr(self, name) for name in self._named]


class _Embedding(_Part):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weights()[0]


class _Layer(_Part):
    def __init__(self, layer: Function, weights: Named) -> None:
        super().__init__(weights)
        self._layer = layer

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return self._layer(h, *self.weights())


class _Last(_Part):
    def forward(self, h: torch.Tensor) -> torch.Tensor:
        norm, head = self.weights()
        return project(normed(h, norm), head)


class Network(torch.nn.Module):
    """The decoder around one function per layer: from tokens to one number per token and symbol."""

    def __init__(self, layer: Function, weights: Named) -> None:
        super().__init__()
        self.embedding = _Embedding({"embed": weights["embed"]})
        self.layers = torch.nn.ModuleList(
            _Layer(layer, {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)})
            for prefix in (f"layer{index}." for index in range(LAYERS))
        )
        self.last = _Last({name: weights[name] for name in ("norm", "head")})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, tokens, symbols] both ways."""
        h = self.embedding(x)
        for layer in self.layers:
            h = layer(h)
        y: torch.Tensor = self.last(h)
        return y


def weights_of(network: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The weights by the names that the case gives them."""
    named = {}
    for name, parameter in network.named_parameters():
        path = name.split(".")
        named[f"layer{path[1]}.{path[2]}" if path[0] == "layers" else path[-1]] = parameter
    return named
