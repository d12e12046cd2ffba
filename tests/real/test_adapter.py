"""The adapter against vLLM itself: what it refuses, what it names when a private name has moved."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from adapters.codec import trace_document
from spec.geometry import Geometry, GeometryError
from spec.trace import Configuration, Group, Settle, Submit, Trace
from tailproof.targets.environments import ensure
from tailproof.targets.opening import DEFAULT
from tailproof.targets.worker import Worker, staged_packages

FULL, MAMBA = Group("full", 16), Group("mamba", 16)

# Layouts at the edge of what vLLM builds; `True` where it does.
LAYOUTS: list[tuple[str, Configuration, bool]] = [
    ("plain", Configuration((FULL, MAMBA), 4), True),
    ("unit is the block", Configuration((FULL, MAMBA), 16), True),
    ("unit does not divide", Configuration((FULL, MAMBA), 5), False),
    ("unit above the block", Configuration((FULL, MAMBA), 32), False),
    ("dense", Configuration((FULL, MAMBA), 4, retention=None), True),
    ("retention on the alignment", Configuration((FULL, MAMBA), 4, retention=32), True),
    ("retention off the alignment", Configuration((FULL, MAMBA), 4, retention=24), False),
    ("retention negative", Configuration((FULL, MAMBA), 4, retention=-16), False),
    ("larger attention block", Configuration((Group("full", 32), MAMBA), 4, retention=32), True),
    ("retention below larger alignment", Configuration((Group("full", 32), MAMBA), 4, retention=16), False),
    ("eagle", Configuration((FULL, MAMBA), 4, eagle=True, speculative=3), True),
    (
        "draft group",
        Configuration((FULL, MAMBA, Group("full", 16, draft=True)), 4, eagle=True, speculative=1),
        True,
    ),
]

BUILD = """
import json, sys
from adapters.vllm.system import VllmSystem
from adapters.vllm.setup import ConfigurationFactory, kv_cache_config
from adapters.codec import parse_trace
accepted = []
system = VllmSystem()
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.core.kv_cache_manager import KVCacheManager
for document in json.load(sys.stdin):
    configuration = parse_trace(document).configuration
    config = ConfigurationFactory.vllm_config(system.target.factory, configuration)
    try:
        layout = kv_cache_config(configuration, system.target.release)
        align, unit = resolve_kv_cache_block_sizes(layout, config)
        KVCacheManager(layout, 1000, align, unit, use_eagle=configuration.eagle)
    except (ValueError, AssertionError) as problem:
        accepted.append(str(problem) or type(problem).__name__)
    else:
        accepted.append("")
print(json.dumps(accepted))
"""

MOVED = """
from vllm.v1.core.sched.scheduler import Scheduler
import vllm.v1.worker.utils as utils
del Scheduler.update_draft_token_ids, utils.copy_kv_cache_blocks_inplace
from adapters.protocol import MovedError
from adapters.vllm.system import VllmSystem
try:
    VllmSystem()
except MovedError as problem:
    print(*problem.names)
"""


def in_target(program: str, given: str = "") -> str:
    """Run a program in the target's Python and return what it printed last."""
    environment = {**os.environ, "PYTHONPATH": str(staged_packages()), "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [str(ensure(DEFAULT, print).python), "-P", "-c", program],
        input=given,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.rule("EL1")
def test_layouts_are_refused_where_vllm_refuses_them() -> None:
    documents = [
        {**trace_document(Trace(configuration, (Submit("A", (("a", 5),)), Settle()))), "note": name}
        for name, configuration, _ in LAYOUTS
    ]
    answers = json.loads(in_target(BUILD, json.dumps(documents)))
    for (name, configuration, fine), answer in zip(LAYOUTS, answers, strict=True):
        assert (answer == "") == fine, f"{name}: vLLM says {answer or 'yes'}"
        try:
            Geometry.of(configuration)
        except GeometryError:
            assert not fine, f"{name}: the spec refuses it, vLLM does not"
        else:
            assert fine, f"{name}: the spec accepts it, vLLM does not"


def test_a_private_name_that_has_moved_is_reported_by_name() -> None:
    assert in_target(MOVED).split() == [
        "vllm.v1.core.sched.scheduler.Scheduler.update_draft_token_ids",
        "vllm.v1.worker.utils.copy_kv_cache_blocks_inplace",
    ]


def test_an_exception_inside_the_target_is_an_observation(vllm: Worker) -> None:
    """A request that can never fit is refused by nobody and waits for ever: stuck, not a test timeout."""
    configuration = Configuration((FULL, MAMBA), 4, blocks=3)
    outcome = vllm.run(Trace(configuration, (Submit("A", (("a", 100),)), Settle())))
    failure = outcome.observations[-1].failure
    assert failure is not None
    assert failure.kind == "stuck"
    assert "A" in failure.message
