"""A wider model that starts with the logits of a narrow one (HyperCloning, Net2Net)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs.architectures import BART, BERT
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from models.parameters import leaf_name
from models.transformer import apply, init_params
from tests.models import tiny
from tests.train.test_conversions import by_name, fields, save, started
from train.conversions import check_widths, widened
from train.init_from import check_init_from

BATCH = tiny.rows("encoder", [[1, 1, 1, 2, 2, 0]], [[7, 8, 9, 4, 1, 0]]) | tiny.rows(
    "decoder", [[1, 1, 2, 2, 2, 0]], [[0, 5, 6, 0, 3, 0]]
)
BATCH["decoder_bidirectional_mask"] = jnp.zeros((1, 6), bool)
SIZES = {
    field: tiny.FIELDS[field] for field in ("num_layers", "d_model", "num_heads", "num_kv_heads", "head_dim", "d_ff")
}
SMALL = SIZES | dict(vocab_size=50, max_length=12, dtype="float32", remat="none", scan_unroll=1, attention="auto")
BERT_FIELDS, BART_FIELDS = BERT["base"] | SMALL, BART["base"] | SMALL
ALL = dict(d_model=32, num_heads=8, num_kv_heads=4, d_ff=60)
TIED = dict(tie_embeddings=True)
QWEN = dict(architecture="decoder_only", positions="rope", qk_norm=True, qkv_bias=True, scale_attention=True)
GEMMA = dict(positions="rope", scale_attention=True, scale_embeddings=True, sandwich_norm=True, logits_softcap=3.0)
GEMMA |= dict(attention_softcap=5.0, global_every=2, local_distance=2, first_layer_global=False)


def wide(there, here, params, seed=0):
    """The parameters of the model `there` as those of the model `here`."""
    shapes = jax.eval_shape(lambda: init_params(here, jax.random.key(0)))

    def leaf(path, array, shape):
        return widened(there, here, leaf_name(path), jnp.asarray(array), shape.shape, seed)

    return jax.tree_util.tree_map_with_path(leaf, params, shapes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "widths"),
    [
        ({}, ALL),  # T5 v1.1: grouped queries, relative positions, untied tables
        ({}, {"d_model": 48}),
        ({}, {"num_heads": 12, "num_kv_heads": 6}),
        ({}, {"d_ff": 40}),
        (TIED, ALL),
        (TIED | {"scale_logits": True}, ALL),
        (TIED | QWEN, ALL),
        (TIED | {"merged_attention": True, "positions": "learned", "share_stacks": True}, ALL),
        (TIED | {"architecture": "encoder_only", "norm": "layer", "use_bias": True, "mlp": "gelu"}, ALL),
        (BERT_FIELDS, ALL),
        (BERT_FIELDS | {"embedding_size": 10, "num_token_types": 2}, ALL),
        (BERT_FIELDS | {"embedding_size": 10}, ALL | {"embedding_size": 30}),
        (BART_FIELDS | {"tie_embeddings": False}, ALL),
        (BART_FIELDS, {"d_ff": 60}),
        (TIED | GEMMA | {"architecture": "decoder_only"}, ALL),
        (TIED | GEMMA | {"scale_logits": True, "share_embeddings": False}, ALL),
        (GEMMA | {"share_embeddings": False}, ALL),
    ],
)
def test_logits_are_those_of_the_narrow_model(changes, widths):
    there = tiny.config(**changes)
    here = dataclasses.replace(there, **widths)
    check_widths(there, here, "")
    params = tiny.params(there)
    wider = wide(there, here, params)
    expected = np.asarray(tiny.run(there, params, BATCH))
    np.testing.assert_allclose(tiny.run(here, wider, BATCH), expected, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    ("widths", "module", "half"),
    [
        ({"d_model": 32}, "mlp/wo", 16),
        ({"num_heads": 8, "num_kv_heads": 4}, "self_attention/value", 12),
        ({"d_ff": 40}, "mlp/wi_0", 20),
    ],
)
def test_copies_do_not_stay_copies(widths, module, half):
    """The gradients of what computes a copied feature differ by more than rounding."""
    there = tiny.config()
    here = dataclasses.replace(there, **widths)
    gradient = jax.jit(jax.grad(lambda params: jnp.square(apply(here, params, BATCH)).sum()))
    kernel = by_name(gradient(wide(there, here, tiny.params(there))))[f"decoder/layers/{module}/kernel"]
    first, second = kernel[..., :half], kernel[..., half:]
    assert np.abs(first - second).max() > 1e-2 * np.abs(first).max() > 0


def test_a_kernel_by_hand():
    """Two inputs and one output, twice as wide: outputs are equal, and the shares of each weight sum to it."""
    there = tiny.config(d_ff=2, d_model=1)
    here = tiny.config(d_ff=4, d_model=2)
    kernel = np.array([[[3.0], [5.0]]], np.float32)
    result = np.asarray(widened(there, here, "decoder/layers/mlp/wo/kernel", jnp.asarray(kernel), (1, 4, 2), 0))
    np.testing.assert_allclose(result[0, :2] + result[0, 2:], [[3, 3], [5, 5]], rtol=1e-6)
    assert (result > 0).all() and len(set(result.ravel())) == 8
    again = widened(there, here, "decoder/layers/mlp/wo/kernel", jnp.asarray(kernel), (1, 4, 2), 1)
    assert (np.asarray(again) != result).all()


def test_a_run_starts_wider_and_deeper_and_states_it(corpus, tmp_path):
    there, saved = save(tmp_path, corpus, model__tie_embeddings=True)
    widths = {"d_model": 64, "num_heads": 4, "num_kv_heads": 4, "d_ff": 96}
    overrides = {f"model__{field}": value for field, value in widths.items()} | {"model__tie_embeddings": True}
    run, params, lines = started(corpus, tmp_path, "clm", "decoder_only", **overrides)
    batch = tiny.rows("decoder", [[1, 1, 1, 1]], [[0, 50, 60, 70]])
    expected = apply(there.model, saved, batch)
    np.testing.assert_allclose(apply(run.experiment.model, params, batch), expected, atol=1e-4, rtol=1e-4)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert lines[1:] == [
        " converted  model.d_model=64, model.num_heads=4, model.num_kv_heads=4, model.d_ff=96: copies of what is "
        "there, which share its outgoing weights at random",
        f"    copied  {count:,} parameters in {len(jax.tree.leaves(params))} arrays",
    ]
    _, deeper, lines = started(corpus, tmp_path, "clm", "decoder_only", model__num_layers=4, **overrides)
    for path, array in by_name(deeper).items():
        repeats = (2, *[1] * (array.ndim - 1)) if "/layers/" in path else 1
        np.testing.assert_allclose(array, np.tile(by_name(params)[path], repeats), rtol=1e-6, err_msg=path)
    assert len(lines) == 4


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        ({}, {"d_model": 48}, "model.d_model=48 must be a multiple of 32, the number there, of which each is copied"),
        ({}, {"d_model": 16}, "model.d_model=16 must be a multiple of 32"),
        ({}, {"num_heads": 4}, "model.num_kv_heads=2 must be 4 for model.num_heads=4: 1 query heads share"),
        ({}, {"head_dim": 32}, "model.head_dim is 16 in that run and 32 here, so the same arrays would compute"),
        (
            {"norm_position": "post", "tie_embeddings": True},
            {"norm_position": "post", "tie_embeddings": True, "d_model": 64},
            "model.d_model=64 would make the logits larger, and model.norm_position='post' with",
        ),
        ({"num_token_types": 1}, {"num_token_types": 2, "d_model": 64}, "token_type_embedder/embedding is"),
    ],
)  # fmt: skip
def test_widths_that_no_rule_gives_are_refused_in_one_line(corpus, tmp_path, there, here, message):
    of_kind = ("encoder_only", "mlm") if "num_token_types" in there else ("decoder_only", "clm")
    save(tmp_path, corpus, of_kind[0], **{f"model__{field}": value for field, value in there.items()})
    overrides = {f"model__{field}": value for field, value in here.items()}
    experiment = make_experiment(fields(corpus, of_kind[1], of_kind[0], train__init_from=str(tmp_path), **overrides))
    with pytest.raises(ConfigError, match=message) as error:
        check_init_from(experiment)
    assert "\n" not in str(error.value)
