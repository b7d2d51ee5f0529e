"""cuDNN's attention under a mask alone: its arguments, and that no gradient of the mask is computed."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import pytest

from models.kernels import choice, cudnn, masked_cudnn
from models.placement import compiled_for
from models.transformer import apply
from tests.models import tiny
from tests.models.kernels.test_choice import check, on_one_device, shapes_of

# The mask's gradient that `jax.nn.dot_product_attention` computes before this version.
PUBLIC = 5 if jax.__version_info__ < (0, 11, 1) else 4


@pytest.mark.skipif(not masked_cudnn.has_known_arguments(), reason="JAX 0.12 and newer have other arguments")
@pytest.mark.parametrize("name", ["causal", "prefix", "order", "cross"])
def test_the_arguments_of_a_mask_without_a_gradient_by_xlas_implementation(name, monkeypatch):
    """XLA's attention in place of JAX's function for cuDNN, which is called with a bias that has no gradient."""

    def of_xla(query, key, value, bias, *arguments):
        unused, settings = arguments[:6], dict(zip(masked_cudnn._SETTINGS, arguments[6:], strict=True))
        assert all(array.shape == (0,) for array in unused) and bias.shape == (2, 1, query.shape[1], key.shape[1])
        assert settings["variadic_args"] == (True, False) and settings["mask_type"].name == (
            "CAUSAL" if name == "causal" else "NO_MASK"
        )
        assert (settings["dropout_rate"], settings["cudnn_version"], settings["return_residual"]) == (0, 91000, False)
        calls.append(name)
        return jax.nn.dot_product_attention(query, key, value, bias, scale=settings["scale"])

    calls, of_jax = [], masked_cudnn._of_jax
    of_xla.__signature__ = inspect.signature(of_jax._dot_product_attention)
    monkeypatch.setattr(of_jax, "_dot_product_attention", of_xla)
    monkeypatch.setattr(of_jax, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(choice, "_unsupported", lambda *_: None)
    monkeypatch.setitem(cudnn._MASK_VALUE, "float32", -1e9)
    check(name, "cudnn", with_bias=False)
    assert calls


@pytest.mark.parametrize(
    ("replaced", "results"),
    [
        ({}, 4),  # the installed JAX: the gradients of queries, keys and values, and a workspace
        ({"has_known_arguments": lambda: False}, PUBLIC),  # and of the mask
        ({"_of_jax": None}, PUBLIC),  # a JAX without this module
        ({"_SETTINGS": (*masked_cudnn._SETTINGS, "block_size")}, PUBLIC),  # a JAX with other arguments
    ],
    ids=["installed", "public", "without the module", "other arguments"],
)
def test_a_mask_without_a_bias_has_no_gradient_unless_jax_is_old_and_unknown(replaced, results, monkeypatch):
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    for name, value in replaced.items():
        monkeypatch.setattr(masked_cudnn, name, value)
    assert masked_cudnn.has_known_arguments() is (not replaced and jax.__version_info__ < (0, 12))
    config = tiny.config(architecture="decoder_only", attention="auto", dtype="bfloat16", positions="rope", head_dim=16)
    for has_prefix in (False, True):
        config = dataclasses.replace(config, has_prefix=has_prefix)
        batch = tiny.rows("decoder", [[1, 1, 2, 2, 0]] * 3, [[4] * 5] * 3)
        batch |= {"decoder_bidirectional_mask": jnp.zeros((3, 5), bool)} if has_prefix else {}
        with compiled_for("cuda", on_one_device):
            traced = jax.jit(jax.grad(lambda params, batch=batch, config=config: apply(config, params, batch).sum()))
            text = traced.trace(shapes_of(config)).lower(lowering_platforms=("cuda",)).as_text()
        (backward,) = [line for line in text.splitlines() if "@__cudnn$fmhaScaleBiasSoftmaxBackward(" in line]
        gradients = backward.rpartition("->")[2]
        assert gradients.count("tensor<") == results and ("tensor<3x1x8x8xbf16>" in gradients) is (results == 5)
        assert f"{'NO_MASK' if has_prefix else 'CAUSAL'}" in backward
