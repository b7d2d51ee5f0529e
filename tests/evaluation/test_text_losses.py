"""Losses of texts: of every objective, those of a text alone, or an error."""

import jax
import numpy as np
import pytest

from contract.errors import ConfigError
from evaluation.text_losses import text_losses
from run.restore import reading_mesh
from run.texts import text_windows
from tests.table import PAIRS, small_experiment

# The layouts of their rows and their loss are also those of clm, ul2, hybrid and glm.
LAID_OUT_AS_OTHERS = {
    *("bart", "clm_then_mlm", "deshuffling", "fim", "iid_denoising", "mass", "pegasus", "prefix_lm", "reverse"),
    *("span_corruption", "ul2_baselines", "ul2r"),
}
# An architecture of each of the other configs.
ONE_OF_EACH = {name: architecture for name, architecture in PAIRS if name not in LAID_OUT_AS_OTHERS}
TEXTS = ["def f(x): return x", "the quick brown fox", "import os, sys, re"]
HAVE_NO_LOSSES = {"classification": "texts with labels", "nsp": "pairs of texts", "simcse": "compares each text"}


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_the_losses_of_a_text_do_not_depend_on_the_other_texts(name):
    # With dropout, which evaluations must not use.
    experiment = small_experiment(name, ONE_OF_EACH[name], model__num_layers=1, model__dropout_rate=0.5)
    shapes = jax.eval_shape(experiment.learner.init_params, jax.random.key(0))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(0.0, 0.1, leaf.shape).astype(leaf.dtype), shapes)
    mesh = reading_mesh(experiment, batch_size=1)
    texts = [(text, text[::-1]) for text in TEXTS] if name in ("sft", "teacherless") else TEXTS
    if name in HAVE_NO_LOSSES:
        with pytest.raises(ConfigError, match=HAVE_NO_LOSSES[name]) as error:
            text_losses(experiment, params, mesh, texts)
        assert "\n" not in str(error.value)
        return
    together = text_losses(experiment, params, mesh, texts)
    assert sum(loss.tokens for loss in together) > 0
    for k in (0, 2):
        [alone] = text_losses(experiment, params, mesh, [texts[k]])
        np.testing.assert_allclose([alone.nats, alone.tokens], [together[k].nats, together[k].tokens], rtol=1e-5)


def test_a_window_of_a_cut_text_begins_or_ends_it():
    experiment = small_experiment("clm", "decoder_only")
    length = experiment.window_specs[0].raw_length
    windows, owners, _ = text_windows(experiment, ["a" * 2 * length + "b", "c"], cut=True)
    assert owners.tolist() == [0, 0, 0, 1]
    assert windows.begins_document.tolist() == [True, False, False, True]
    assert windows.ends_document.tolist() == [False, False, True, True]
