"""The fixture of files that choose and plan many runs."""

import pytest

from run.memory import activation_bytes


@pytest.fixture(scope="module")
def traced_once():
    """The activations of a config on a mesh are traced once in a file, since a trace takes up to a second."""
    found = {}

    def once(experiment, mesh, platform):
        key = repr((experiment.config, dict(mesh.shape), platform))
        if key not in found:
            found[key] = activation_bytes(experiment, mesh, platform)
        return found[key]

    with pytest.MonkeyPatch.context() as patch:
        for module in ("run.memory", "plan.estimate"):
            patch.setattr(f"{module}.activation_bytes", once)
        yield
