"""The script of a checkout that cannot be imported: the import, the error, and exit status 1 for it. Pure."""

from __future__ import annotations

from service.repro.deepspeed import LAYER
from service.repro.given import Given
from service.repro.heading import heading_lines

IMPORT = f"""\
import os, sys, traceback

os.environ["DS_ACCELERATOR"] = "cpu"
import torch

print(f"torch {{torch.__version__}}, Python {{sys.version.split()[0]}}")
try:
    import deepspeed
    import {LAYER}
except BaseException as error:
    traceback.print_exc()
    print(f"does not agree: the import raises {{type(error).__name__}}: {{error}}".splitlines()[0])
    sys.exit(1)
else:
    print(f"agrees: deepspeed {{getattr(deepspeed, '__version__', '?')}} can be imported")
"""


def script(given: Given) -> str:
    """The whole script."""
    return "\n".join([*heading_lines(given), IMPORT])
