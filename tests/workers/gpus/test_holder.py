from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

from workers.gpus import alive, this_process


def test_this_process_lives_until_it_ends() -> None:
    code = """
import sys
from workers.gpus import this_process
holder = this_process()
print(holder.machine, holder.pid, holder.started, sep="|", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None and other.stdin is not None
        machine, pid, started = other.stdout.readline().strip().split("|")
        holder = dataclasses.replace(this_process(), pid=int(pid), started=started)
        assert (machine, other.pid) == (holder.machine, holder.pid)
        assert alive(holder) is True
        other.kill()
        while Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            pass
        assert alive(holder) is False  # only its remains are there: nobody has waited for it yet
    assert alive(holder) is False


def test_a_process_id_that_is_used_again_is_another_process() -> None:
    me = this_process()
    assert alive(me) is True
    assert alive(dataclasses.replace(me, started=str(int(me.started) - 1))) is False


def test_of_another_machine_or_boot_nothing_is_known() -> None:
    me = this_process()
    assert alive(dataclasses.replace(me, machine="another boot")) is None
    assert alive(dataclasses.replace(me, machine="")) is None
    assert alive(dataclasses.replace(me, started="")) is None
