"""What the guides print works: the learner trains, and the changes of the model apply and change what they say."""

import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from tests.docs.guides import ROOT, copy_with_changes

_LEARNER = """
import jax, numpy as np
from configs import clm
from experiment.experiment import make_experiment

def experiment(objective):
    config = clm.get_config()
    config.objective = objective
    config.model.update(dict(num_layers=1, d_model=8, num_heads=2, num_kv_heads=1, head_dim=4, d_ff=8))
    config.data.update(dict(documents="join", inputs_length=8, targets_length=8))
    config.train.batch_size = 2
    return make_experiment(config.to_dict())

def loss_and_sums(experiment):
    learner = experiment.learner
    params = learner.init_params(jax.random.key(0))
    return learner.loss(params, batch, learner.weights(batch), key=jax.random.key(1), train=True)

tokens = np.arange(16, dtype=np.int32).reshape(2, 8) + 10
batch = dict(
    decoder_input_tokens=tokens, decoder_target_tokens=tokens + 1, decoder_loss_weights=np.ones((2, 8), np.float32),
    decoder_segment_ids=np.ones((2, 8), np.int32), decoder_positions=np.tile(np.arange(8, dtype=np.int32), (2, 1)),
    decoder_bidirectional_mask=np.zeros((2, 8), bool), example_source=np.zeros((2, 8), np.int32),
)
plain, sums = loss_and_sums(experiment(dict(name="clm")))
same, _ = loss_and_sums(experiment(dict(name="focal_clm", gamma=0.0)))
focal, focal_sums = loss_and_sums(experiment(dict(name="focal_clm", gamma=2.0)))
np.testing.assert_allclose(same, plain, rtol=1e-6)
assert 0 < focal < plain, (focal, plain)
np.testing.assert_allclose(focal_sums["loss_sum"], sums["loss_sum"], rtol=1e-6)
try:
    experiment(dict(name="focal_clm", gamma=-1.0))
except Exception as error:
    assert "objective.gamma=-1.0 must be 0 or more" in str(error), error
else:
    raise AssertionError("gamma=-1 was accepted")
"""

_MODEL = """
import jax, numpy as np
from configs import span_corruption
from models.transformer import Transformer, bind, init_params
from experiment.experiment import make_experiment
from run.sharding import RULES
from experiment.optimizer import decay_mask
import dataclasses, re

def model(**fields):
    config = span_corruption.get_config()
    config.model.update(dict(num_layers=1, d_model=8, num_heads=2, num_kv_heads=1, head_dim=4, d_ff=8) | fields)
    return make_experiment(config.to_dict()).model

def logits(config):
    params = init_params(config, jax.random.key(0))
    transformer = bind(config, params)
    return params, transformer.logits(transformer.hidden(batch))

ones = np.ones((1, 4), np.int32)
positions = np.arange(4, dtype=np.int32)[None]
tokens = positions + 10
batch = dict(
    encoder_input_tokens=tokens, encoder_segment_ids=ones, encoder_positions=positions,
    decoder_input_tokens=tokens, decoder_segment_ids=ones, decoder_positions=positions,
)
params, plain = logits(model())
_, squared = logits(model(mlp="squared_relu"))
normed_params, normed = logits(model(output_norm=True))
assert np.isfinite(squared).all() and np.isfinite(normed).all()
assert np.abs(normed - plain).max() > 1e-4
paths = {jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(normed_params)}
new = paths - {jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in jax.tree.leaves_with_path(params)}
assert {path.rpartition("self_attention/")[2] for path in new if "self_attention" in path} == {
    "output_norm/scale"}, new
assert sum("cross_attention" in path for path in new) == 1
assert all(any(re.search(f"(?:{pattern})$", path) for pattern, _ in RULES) for path in new)
assert not any(jax.tree.leaves(decay_mask({"output_norm": {"scale": 0}}, ("norm", "bias", "embedd"))))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("guide", "code"), [("adding_a_learner", _LEARNER), ("changing_the_model", _MODEL)])
def test_a_guide_works_as_printed(guide, code, tmp_path):
    changed = copy_with_changes(guide, tmp_path)
    assert len(changed) >= 5
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_the_tests_that_the_guide_of_the_model_names_pass_with_its_changes(tmp_path):
    """The first of them: the published shapes have the new field, and their numbers of parameters."""
    named = re.findall(r"^    pytest -n 0 (.+)$", (ROOT / "docs" / "changing_the_model.md").read_text(), re.MULTILINE)
    assert all((ROOT / file).is_file() for line in named for file in line.split())
    copy_with_changes("changing_the_model", tmp_path)
    for name in ("tests", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", named[0].split()[0]]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
