"""Devices that share the positions of rows (mesh.context): what they cannot share, and the estimate of memory.

tests/run/eight_devices.py compares updates and evaluations with those of one device.
"""

import pytest

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from plan.estimate import Topology, estimate
from tests.table import small_config


def plan_of(context, name="clm", architecture="decoder_only", **fields):
    experiment = make_experiment(small_config(name, architecture, mesh__context=context, **fields))
    return estimate(experiment, Topology("some:4", 4, None, ()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data__inputs_length": 42}, r"data.inputs_length=42 must be a multiple of mesh.context=4, whose devices"),
        (
            {"architecture": "encoder_decoder", "name": "span_corruption", "data__targets_length": 22},
            r"data.targets_length=22 must be a multiple of mesh.context=4",
        ),
        ({"name": "simcse", "architecture": "encoder_only"}, r"mesh.context=4 must be 1 for objective.name='simcse'"),
    ],
)
def test_what_devices_cannot_share_is_an_error(fields, message):
    with pytest.raises(ConfigError, match=message):
        plan_of(4, **fields)


def test_context_is_not_combined_with_two_axes_of_parameters():
    experiment = make_experiment(small_config("clm", "decoder_only", mesh__context=2, mesh__fsdp=2, mesh__tensor=2))
    with pytest.raises(ConfigError, match=r"mesh.context=2 must be 1 with mesh.fsdp=2 and mesh.tensor=2"):
        estimate(experiment, Topology("some:8", 8, None, ()))
