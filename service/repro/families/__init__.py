"""The templates, a module per family. A family joins by one line in :data:`FAMILIES`.

A template turns :class:`service.repro.given.Given` into a :class:`service.repro.given.Body`: the call as the subject's
users write it, and the same in plain torch for one process. The frame does the rest.
"""

from __future__ import annotations

from service.repro.families import attention, autosp, engine, exchange, loss, model, tiled, torch_itself
from service.repro.given import Template

FAMILIES: dict[str, Template] = {
    "exchange": exchange.body,
    "torch-itself": torch_itself.body,
    "attention": attention.body,
    "tiled": tiled.body,
    "loss": loss.body,
    "model": model.body,
    "engine": engine.body,
    "autosp": autosp.body,
}
