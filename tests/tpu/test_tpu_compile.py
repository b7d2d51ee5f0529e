"""Every config's `base` preset, compiled by the real TPU compiler for one v5e chip's kind, without a TPU.

Needs libtpu: pip install -e '.[test,tpu]' && pytest -n2 tests/tpu. Takes minutes, and is skipped where it is not there.
"""

import importlib

import pytest

from tests.table import CONFIGS
from train.experiment import make_experiment
from train.plan_estimate import estimate
from train.topology import parse_topology

pytest.importorskip("libtpu", reason="the TPU compiler is not installed: pip install -e '.[tpu]'")


@pytest.mark.parametrize("config", CONFIGS)
def test_the_base_preset_compiles_for_a_tpu(config):
    """With 8 rows: whether it compiles does not depend on how many there are, and how long that takes does a little."""
    fields = importlib.import_module(f"configs.{config}").get_config("base").to_dict()
    fields["train"] |= {"batch_size": 8, "grad_accum_steps": 1}
    fields["model"]["remat"] = "full"
    plan = estimate(make_experiment(fields, vocab_size=32100), parse_topology("v5e:2x2"))
    assert plan.compile_seconds > 0 and plan.total_bytes > plan.parameter_bytes > 1e6
    assert plan.collectives, "four chips that hold rows of one batch add up their gradients"
