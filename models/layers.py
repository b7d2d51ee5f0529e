"""Layers but attention: dropout, linear maps, norms, embeddings, feed-forward block, BERT's head; rematerialization."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from contract.rng import mix32
from models import initializers
from models.config import ModelConfig
from models.placement import GPUS, row_keys, splits_kernels, target_platform

_POLICIES = {
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


def gelu(x: Array) -> Array:
    """Returns GELU(x) by the tanh approximation, as in BERT, ELECTRA, GPT-2 and T5 v1.1; same shape and dtype as x.

    Computed in float32: in float16 the gradient of the formula's x^3 would be NaN from x = 148 on.
    """
    return jax.nn.gelu(x.astype(jnp.float32)).astype(x.dtype)


def exact_gelu(x: Array) -> Array:
    """Returns GELU(x) = x * Phi(x), as in RoBERTa and BART; computed in float32, same shape and dtype as x."""
    return jax.nn.gelu(x.astype(jnp.float32), approximate=False).astype(x.dtype)


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "gelu": gelu,
    "exact_gelu": exact_gelu,
    "silu": jax.nn.silu,
}


def softcap(x: Array, cap: float) -> Array:
    """Returns cap * tanh(x / cap), same shape and dtype as x: Gemma 2's bound of scores and logits."""
    return cap * jnp.tanh(x / cap)


def activation(config: ModelConfig) -> Callable[[Array], Array]:
    """Returns the activation of model.mlp, which the prediction head and ELECTRA's discriminator head have too."""
    return _ACTIVATIONS[config.mlp.removeprefix("gated_")]


def split_key(key: Array | None, num: int) -> tuple[Array | None, ...]:
    """Returns `num` independent keys, or `num` times None if `key` is None (no dropout)."""
    return (None,) * num if key is None else tuple(jax.random.split(key, num))


def dropout(x: Array, rate: float, key: Array | None, *, broadcast_positions: bool) -> Array:
    """Zeroes entries of x [B, ..., L, D] with probability `rate` and divides the rest by 1 - rate.

    Returns x if `key` is None.

    broadcast_positions: True: all L positions share one draw, as in T5 (Mesh TensorFlow, T5X), so a feature is dropped
      for the whole row. Deviation: in T5X the last dropout of the encoder draws for each position. False: every entry
      has its own draw, as in BERT and GPT-2.
    """
    if key is None or rate == 0:
        return x
    shape = (*x.shape[:-2], 1, x.shape[-1]) if broadcast_positions else x.shape

    @recomputed  # saves the words alone
    def drop(x: Array, words: MaskWords) -> Array:
        return jnp.where(words.kept(rate), x / (1 - rate), 0).astype(x.dtype)

    return drop(x, draw_mask(key, shape))


def model_dropout(config: ModelConfig, x: Array, key: Array | None) -> Array:
    """Returns `dropout` of x [B, ..., L, D] as the fields of `config` set it."""
    return dropout(x, config.dropout_rate, key, broadcast_positions=config.dropout_broadcast_positions)


class MaskWords(NamedTuple):
    """Random words from which a dropout mask [B, ..., D] is computed wherever it is read, in the backward pass too.

    A random word for each entry, as of jax.random.bernoulli, would cost as much as the products of a model. Here the
    word of an entry is a hash of two words, that of its line and that of its column. Any three entries are independent,
    as with words of their own: tabulation hashing (Carter and Wegman 1979). The hash is nonlinear, so that there is no
    pattern in four, the corners of a rectangle.
    """

    lines: Array  # uint32 [B, ..., 1]
    columns: Array  # uint32 [B, 1, ..., D]

    def kept(self, rate: float) -> Array:
        """Returns the mask, bool [B, ..., D]: False with probability `rate`, in [0, 1)."""
        return mix32(self.lines ^ self.columns) >= jnp.uint32(int(rate * 2**32))


def draw_mask(key: Array, shape: tuple[int, ...]) -> MaskWords:
    """Returns the words of a mask of `shape` [B, ..., D]. A row's depend on `key` and on its index in the batch."""

    def words(key: Array, *of_row: int) -> Array:
        return jax.vmap(lambda key: jax.random.bits(key, of_row))(row_keys(key, shape[0]))

    lines_key, columns_key = jax.random.split(key)
    ones = (1,) * (len(shape) - 2)
    return MaskWords(words(lines_key, *shape[1:-1], 1), words(columns_key, *ones, shape[-1]))


@jax.custom_vjp
def affine(x: Array, kernel: Array, bias: Array | None) -> Array:
    """Returns x [positions, inputs] times kernel [inputs, outputs] plus bias [outputs], in the dtype of x.

    kernel, bias: float32, rounded to the dtype of x. Their gradients are float32 and not rounded, so that sums over
    devices and microbatches are float32 too: a bfloat16 sum over 8,192 rows has an error of 1 to 2%.
    """
    return _affine_forward(x, kernel, bias)[0]


def _affine_forward(x, kernel, bias):
    y = x @ kernel.astype(x.dtype)
    return y if bias is None else y + bias.astype(x.dtype), (x, kernel, bias)


def _affine_backward(residuals, y_bar):
    x, kernel, bias = residuals
    # For the sum over positions XLA's GPU compiler otherwise writes y_bar to memory in float32 too.
    y_bar = y_bar if bias is None or target_platform() not in GPUS else jax.lax.optimization_barrier(y_bar)
    product = functools.partial(jnp.matmul, preferred_element_type=kernel.dtype)
    if target_platform() == "cpu" and x.shape[1] > y_bar.shape[1]:
        # Faster with the narrower array on the left (jax 0.12). Without the barrier XLA undoes the transposition.
        kernel_bar = jax.lax.optimization_barrier(product(y_bar.T, x)).T
    else:
        kernel_bar = product(x.T, y_bar)
    bias_bar = None if bias is None else y_bar.astype(bias.dtype).sum(0)
    return y_bar @ kernel.astype(x.dtype).T, kernel_bar, bias_bar


affine.defvjp(_affine_forward, _affine_backward)


@jax.custom_vjp
def logits_product(states_NxC: Array, table_CxV: Array) -> Array:
    """Returns the logits, float32 [N, V]. Both products of the backward pass multiply in the dtype of the states.

    The gradient of the logits is float32. JAX's own rule would multiply it in float32, at half the rate of bfloat16 or
    less; here it is rounded to the dtype of the states first. Sums are float32, and so is the gradient of the table.

    Args:
      states_NxC: [N, C] in the compute dtype.
      table_CxV: float32 [C, V], rounded to the compute dtype.
    """
    return _product(states_NxC, table_CxV.astype(states_NxC.dtype))


def _logits_forward(states_NxC: Array, table_CxV: Array) -> tuple[Array, tuple[Array, Array]]:
    return logits_product(states_NxC, table_CxV), (states_NxC, table_CxV)


def _logits_backward(saved: tuple[Array, Array], logits_bar_NxV: Array) -> tuple[Array, Array]:
    states_NxC, table_CxV = saved
    dtype = states_NxC.dtype
    bar_NxV = logits_bar_NxV.astype(dtype)
    states_bar_NxC = _product(bar_NxV, table_CxV.astype(dtype).T)
    return states_bar_NxC.astype(dtype), _product(states_NxC.T, bar_NxV).astype(table_CxV.dtype)


def _product(left: Array, right: Array) -> Array:
    return jnp.matmul(left, right, preferred_element_type=jnp.float32)


logits_product.defvjp(_logits_forward, _logits_backward)


class Linear(nnx.Module):
    """A linear map, x [positions, inputs] -> [positions, outputs] in the compute dtype.

    The map has a bias if model.use_bias, or with `use_bias`.
    """

    def __init__(
        self,
        config: ModelConfig,
        inputs: int,
        outputs: int,
        kernel_init: initializers.Initializer,
        *,
        use_bias: bool = False,
        rngs: nnx.Rngs,
    ):
        self.dtype = config.dtype
        self.kernel = nnx.Param(kernel_init(rngs.params(), (inputs, outputs), jnp.float32))
        self.bias = nnx.Param(jnp.zeros(outputs)) if config.use_bias or use_bias else None

    def __call__(self, x: Array) -> Array:
        return affine(x.astype(self.dtype), self.kernel[...], None if self.bias is None else self.bias[...])


def output_layer(config: ModelConfig, inputs: int, outputs: int, **options: Any) -> nnx.Linear:
    """Returns a linear map to float32 logits: of tokens, of classes or of replaced tokens. options: of nnx.Linear."""
    init = initializers.output_table(config)
    return nnx.Linear(
        inputs, outputs, kernel_init=init, dtype=config.dtype, preferred_element_type="float32", **options
    )


def recomputed(function: Callable[..., Array]) -> Callable[..., Array]:
    """Returns `function` with intermediate results recomputed in the backward pass; only its arguments are saved.

    For cheap functions of large arrays: autodiff saves about five arrays for one tanh GELU. In a loop over layers CSE
    cannot merge the forward and the backward computation; on GPUs there may be no loop (`scan_layers`).
    """
    return jax.checkpoint(function, prevent_cse=target_platform() in GPUS)


def rematerialized(config: ModelConfig, body: Callable) -> Callable:
    """Returns `body`, the function of a `jax.lax.scan` over layers, under the policy `config.remat`.

      none: everything that the backward pass needs is saved;
      dots: products with kernels are saved; attention scores and elementwise functions are recomputed;
      full: only a layer's inputs are saved, and its forward pass runs twice;
      auto: as none, in models that are not trained; a train step has one of the others.

    Values and gradients are the same. `prevent_cse` is not needed inside a scan that remains a loop.
    """
    policy = _POLICIES.get(config.remat)
    return jax.checkpoint(body, policy=policy, prevent_cse=config.scan_unroll > 1) if policy else body


def scan_layers(config: ModelConfig, body: Callable, carry: Any, scanned: Any) -> tuple[Any, Any]:
    """Returns `jax.lax.scan(body, carry, scanned)` over layers, rematerialized and unrolled as `config` sets it.

    With model.scan_unroll=0 layers are a loop, except on GPUs where kernels are not sharded and nothing is
    rematerialized: a loop copies what a layer reads and saves from and to arrays of all layers, in a fifth of a step of
    T5 base on an H100 (BENCHMARKS.md). Without a loop XLA may rematerialize all layers at once, which saves no memory.
    """
    unrolls = target_platform() in GPUS and not splits_kernels() and config.remat not in _POLICIES
    return jax.lax.scan(rematerialized(config, body), carry, scanned, unroll=config.scan_unroll or unrolls)


def linear_maps(x: Array, *maps: Linear) -> list[Array]:
    """Returns the output [positions, outputs] of each map for the same x [positions, inputs].

    One product computes all outputs, which is faster than several smaller ones. Where kernels are sharded over a mesh,
    each map is a product of its own: joining kernels that are sharded by outputs would move them between devices, and
    the gradient of joined kernels that are sharded by inputs would be added up whole on every device.
    """
    if len(maps) == 1 or splits_kernels():
        return [linear(x) for linear in maps]

    @recomputed  # so that the joined kernels are not saved for the backward pass
    def joined(x: Array, kernels: list[Array], biases: list[Array]) -> Array:
        return affine(x, jnp.concatenate(kernels, 1), jnp.concatenate(biases) if biases else None)

    kernels = [linear.kernel[...] for linear in maps]
    biases = [linear.bias[...] for linear in maps if linear.bias is not None]
    y = joined(x.astype(maps[0].dtype), kernels, biases)
    return list(jax.lax.split(y, [kernel.shape[1] for kernel in kernels], axis=1))


def normed(x: Array, scale: Array | float = 1, bias: Array | float = 0, *, epsilon: float, centered: bool) -> Array:
    """Returns RMSNorm of x over the last axis, or LayerNorm if `centered`; computed in float32, same dtype as x."""
    y = x.astype(jnp.float32)
    if centered:
        y -= y.mean(-1, keepdims=True)
    y *= jax.lax.rsqrt(jnp.square(y).mean(-1, keepdims=True) + epsilon)
    return (y * scale + bias).astype(x.dtype)


def rms_normed(x: Array, epsilon: float) -> Array:
    """Returns x over its root mean square along the last axis, as `normed`, recomputed in the backward pass."""
    return recomputed(functools.partial(normed, epsilon=epsilon, centered=False))(x)


class Norm(nnx.Module):
    """RMSNorm, or LayerNorm with a bias if model.use_bias, over the last axis; computed in float32, same dtype as x.

    features: size of the last axis; None: d_model.
    """

    def __init__(self, config: ModelConfig, *, features: int | None = None, rngs: nnx.Rngs):
        del rngs  # nothing is drawn: the scale is initialized to 1, the bias to 0
        features = features or config.d_model
        self.centered = config.norm == "layer"
        self.epsilon = config.norm_epsilon
        self.scale = nnx.Param(jnp.ones(features))
        self.bias = nnx.Param(jnp.zeros(features)) if self.centered and config.use_bias else None

    def __call__(self, x: Array) -> Array:
        if self.centered and target_platform() in GPUS:
            return _layer_norm(x, self.scale[...], None if self.bias is None else self.bias[...], self.epsilon)
        norm = recomputed(functools.partial(normed, epsilon=self.epsilon, centered=self.centered))
        return norm(x, self.scale[...], 0 if self.bias is None else self.bias[...])


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer_norm(x: Array, scale: Array, bias: Array | None, epsilon: float) -> Array:
    """Returns LayerNorm of x, as `Norm` does. For GPUs, where the backward pass of `Norm` writes float32 states."""
    return _layer_norm_forward(x, scale, bias, epsilon)[0]


def _layer_norm_forward(x, scale, bias, epsilon):
    y = x.astype(jnp.float32)
    mean = y.mean(-1, keepdims=True)
    inverse = jax.lax.rsqrt(jnp.square(y - mean).mean(-1, keepdims=True) + epsilon)
    y = (y - mean) * inverse * scale
    return (y if bias is None else y + bias).astype(x.dtype), (x, scale, bias, mean, inverse)


def _layer_norm_backward(epsilon, residuals, y_bar):
    x, scale, bias, mean, inverse = residuals

    def normalized(x: Array, y_bar: Array) -> tuple[Array, Array]:
        return (x.astype(jnp.float32) - mean) * inverse, y_bar.astype(jnp.float32)

    y_bar = jax.lax.optimization_barrier(y_bar)
    # Sums over positions and means over features have no array in common, so that each reads x and y_bar alone.
    normal, bar = normalized(*jax.lax.optimization_barrier((x, y_bar)))
    positions = tuple(range(x.ndim - 1))
    scale_bar, bias_bar = (normal * bar).sum(positions), None if bias is None else bar.sum(positions)
    normal, bar = normalized(x, y_bar)
    bar *= scale
    x_bar = inverse * (bar - bar.mean(-1, keepdims=True) - normal * (bar * normal).mean(-1, keepdims=True))
    return x_bar.astype(x.dtype), scale_bar, bias_bar


_layer_norm.defvjp(_layer_norm_forward, _layer_norm_backward)


class Embedding(nnx.Module):
    """An embedding table [rows, columns] with `config.embedding_width` columns."""

    def __init__(self, config: ModelConfig, rows: int, *, rngs: nnx.Rngs):
        self.dtype = config.dtype
        shape = (rows, config.embedding_width)
        self.embedding = nnx.Param(initializers.embedding(config)(rngs.params(), shape, jnp.float32))

    def __call__(self, ids: Array) -> Array:
        """Maps ids, int [...], to [..., columns] in the compute dtype. An id of `rows` or more gives NaN."""
        return jnp.take(self.embedding[...], ids, axis=0, mode="fill").astype(self.dtype)

    def attend(self, x: Array) -> Array:
        """Maps [positions, columns] to float32 [positions, rows]: products with all rows, for a tied output table."""
        return logits_product(x.astype(self.dtype), self.embedding[...].T)


class MLP(nnx.Module):
    """The feed-forward block: wo(act(wi x)), or wo(act(wi_0 x) * wi_1 x) if gated.

    Dropout after the activation and after wo, as in T5. Deviation: only T5 has dropout after the activation.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        self.config = config
        init, output_init = initializers.matrix(config), initializers.mlp_output(config)
        self.gated = config.mlp.startswith("gated_")
        if self.gated:
            self.wi_0 = Linear(config, config.d_model, config.d_ff, init, rngs=rngs)
            self.wi_1 = Linear(config, config.d_model, config.d_ff, init, rngs=rngs)
        else:
            self.wi = Linear(config, config.d_model, config.d_ff, init, rngs=rngs)
        self.wo = Linear(config, config.d_ff, config.d_model, output_init, rngs=rngs)

    def __call__(self, x_BxLxD: Array, *, dropout_key: Array | None = None) -> Array:
        """Maps [B, L, D] to [B, L, D] in the compute dtype. No dropout if `dropout_key` is None."""
        inner_key, output_key = split_key(dropout_key, 2)
        B, L, D = x_BxLxD.shape
        activate = activation(self.config)
        x = x_BxLxD.reshape(B * L, D)

        @recomputed  # includes wo, because the gradient of its kernel also needs the activation's result
        def project(*inner: Array) -> Array:
            h = activate(inner[0]) * inner[1] if self.gated else activate(inner[0])
            h_BxLxF = model_dropout(self.config, h.reshape(B, L, -1), inner_key)
            return self.wo(h_BxLxF.reshape(B * L, -1))

        # Two products: joined into one by `linear_maps`, a T5 step takes 1.2 times as long on CPU (jax 0.10), and on a
        # TPU the block reads and writes 1.17 times as much (python -m benchmarks.operations --topology=v5e:1x1).
        y = project(self.wi_0(x), self.wi_1(x)) if self.gated else project(self.wi(x))
        return model_dropout(self.config, y.reshape(B, L, D), output_key)


class PredictionHead(nnx.Module):
    """BERT's masked language model head, up to the output table: dense to the table's width, activation, norm.

    ELECTRA's table is narrower than d_model. The activation is that of model.mlp.

    `bias` [V], if model.use_bias or model.logits_bias, is added to the logits by `Transformer.logits`.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        width = config.embedding_width
        self.activation = activation(config)
        self.dense = Linear(config, config.d_model, width, initializers.matrix(config), rngs=rngs)
        self.norm = Norm(config, features=width, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size)) if config.use_bias or config.logits_bias else None

    def __call__(self, x: Array) -> Array:
        """Maps [positions, D] to [positions, embedding width] in the compute dtype."""
        return self.norm(recomputed(self.activation)(self.dense(x)))
