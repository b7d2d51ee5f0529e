"""A stack of identical layers: parameters have a leading layer axis, over which a scan runs."""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax import Array

from models.attention import Attention, AttentionFn, KeysValues
from models.config import ModelConfig
from models.kernels import make_attention_fn
from models.layers import MLP, Norm, model_dropout, scan_layers, split_key
from models.placement import constrain_activations
from models.positions import RelativePositionBias, Rotation, continued_positions, rotation

AnyLayer = TypeVar("AnyLayer", bound="Layer")


class LocalAttention(NamedTuple):
    """What local layers have besides the context of global ones."""

    near_Bx1xQxS: Array  # bool: the keys within model.local_distance of the query
    rotation: Rotation | None  # with model.local_rope_theta; None: positions are not rotary


class AttentionContext(NamedTuple):
    """What all layers of a stack share: attention with masks and biases bound, and the angles of rotary embeddings."""

    attention_fn: AttentionFn
    rotation: Rotation | None  # None: positions are not rotary
    cross_attention_fn: AttentionFn | None  # None: the layers have no cross-attention
    cache_index: Array | int  # of the first position in the cache of keys and values; 0 without a cache
    local: LocalAttention | None = None  # None: every layer attends globally
    skips_norm: Array | None = None  # bool []: whether the layer has no norm before its attention; None: it has one
    encoder_rotation: Rotation | None = None  # of the encoder's keys (model.continuous_positions); None: not rotary

    def of_layer(self, config: ModelConfig, number: Array) -> "AttentionContext":
        """Returns the context of layer `number` of a stack, int32 [], where `config.layers_differ`."""
        context, local = self, self.local
        if local is not None:
            is_global = config.is_global(number)
            context = context._replace(
                attention_fn=functools.partial(self.attention_fn, near_Bx1xQxS=local.near_Bx1xQxS | is_global),
                rotation=jax.tree.map(functools.partial(jnp.where, is_global), self.rotation, local.rotation),
            )
        return context if config.first_attention_norm else context._replace(skips_norm=number == 0)


class Layer(nnx.Module):
    """Self-attention, cross-attention if any, and feed-forward block, each with a norm and a residual connection.

    With model.parallel_residual both blocks read the layer's input, each after its own norm, as in GPT-NeoX. With
    model.sandwich_norm each block's output has a norm too, before it is added, as in Gemma 2.

    With model.merged_attention, a decoder's layer has no cross-attention. Its self-attention then has the keys and
    values of the encoder's states after those of the row, by the same projections and in one softmax, as in T5Gemma 2
    (Zhang et al. 2025, arXiv 2512.14856). The encoder's keys have no relative position bias, rotary positions only with
    model.continuous_positions, and local layers attend to all of them.
    """

    def __init__(self, config: ModelConfig, *, cross_attention: bool, rngs: nnx.Rngs):
        self.config = config
        self.self_attention_norm = Norm(config, rngs=rngs)
        self.self_attention = Attention(config, rngs=rngs)
        if cross_attention:
            self.cross_attention_norm = Norm(config, rngs=rngs)
            self.cross_attention = Attention(config, rngs=rngs)
        self.mlp_norm = Norm(config, rngs=rngs)
        self.mlp = MLP(config, rngs=rngs)
        if config.sandwich_norm:
            self.self_attention_post_norm = Norm(config, rngs=rngs)
            if cross_attention:
                self.cross_attention_post_norm = Norm(config, rngs=rngs)
            self.mlp_post_norm = Norm(config, rngs=rngs)

    def __call__(
        self,
        x_BxLxD: Array,
        context: AttentionContext,
        *,
        cross: KeysValues | None = None,
        cached: KeysValues | None = None,
        dropout_key: Array | None = None,
    ) -> tuple[Array, KeysValues | None]:
        """Maps [B, L, D] to [B, L, D]. Also returns the updated cache, None without a cache.

        cross: keys and values of the encoder's states (`encoder_keys_values`), for cross-attention or merged attention.
        cached: keys and values [B, G, S, K] of earlier positions. The keys and values of x are written to it from index
          `context.cache_index` on. None: x attends to itself.
        dropout_key: None: no dropout.
        """
        self_key, cross_key, mlp_key = split_key(dropout_key, 3)
        normed = self._pre_norm(self.self_attention_norm, x_BxLxD)
        normed = normed if context.skips_norm is None else jnp.where(context.skips_norm, x_BxLxD, normed)
        query, keys_values = self.self_attention.queries_keys_values(normed, context.rotation)
        if cached is not None:
            keys_values = cached = _update_cache(cached, keys_values, context.cache_index)
        if self.config.merged_attention and cross is not None:
            keys_values = KeysValues(*(jnp.concatenate(x, axis=2) for x in zip(keys_values, cross, strict=True)))
        y = self.self_attention(query, keys_values, attention_fn=context.attention_fn, dropout_key=self_key)
        x = self._add_residual("self_attention", x_BxLxD, y)

        if context.cross_attention_fn is not None:
            assert cross is not None, "the encoder's keys and values are missing"
            angles = context.rotation if self.config.continuous_positions else None
            query = self.cross_attention.queries(self._pre_norm(self.cross_attention_norm, x), angles)
            y = self.cross_attention(query, cross, attention_fn=context.cross_attention_fn, dropout_key=cross_key)
            x = self._add_residual("cross_attention", x, y)

        inputs = x_BxLxD if self.config.parallel_residual else x
        y = self.mlp(self._pre_norm(self.mlp_norm, inputs), dropout_key=mlp_key)
        return constrain_activations(self._add_residual("mlp", x, y)), cached

    def encoder_keys_values(self, encoded_BxExD: Array, rotation: Rotation | None) -> KeysValues:
        """Returns keys and values of the encoder's states, each [B, G, E, K]."""
        attention = self.self_attention if self.config.merged_attention else self.cross_attention
        return attention.keys_values(encoded_BxExD, rotation)

    def _pre_norm(self, norm: Norm, x: Array) -> Array:
        """Returns the input of a block: normed in pre-norm models."""
        return norm(x) if self.config.norm_position == "pre" else x

    def _add_residual(self, block: str, x: Array, y: Array) -> Array:
        """Returns the sum of a block's input x and output y: normed in post-norm models."""
        if self.config.norm_position == "post":
            return getattr(self, f"{block}_norm")(x + y)
        return x + (getattr(self, f"{block}_post_norm")(y) if self.config.sandwich_norm else y)


def _update_cache(cached: KeysValues, new: KeysValues, index: Array | int) -> KeysValues:
    return KeysValues(*(jax.lax.dynamic_update_slice_in_dim(c, n, index, 2) for c, n in zip(cached, new, strict=True)))


class FinalNorm(Norm):
    """The norm after the last layer of a pre-norm model, followed by dropout as in T5.

    Deviation: GPT-2 and PEGASUS have no dropout there.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        self.config = config

    def __call__(self, x: Array, *, dropout_key: Array | None = None) -> Array:
        """Maps [..., L, D] to [..., L, D]. No dropout if `dropout_key` is None."""
        return model_dropout(self.config, super().__call__(x), dropout_key)


def stack_layers(make: Callable[[nnx.Rngs], AnyLayer], num: int, rngs: nnx.Rngs) -> AnyLayer:
    """Returns `num` independently initialized layers as one module whose parameters have a leading layer axis."""
    return nnx.split_rngs(splits=num)(nnx.vmap(make, in_axes=0, out_axes=0))(rngs)


def layer_keys(key: Array | None, num: int) -> Array | None:
    """Returns [num] independent keys to scan over, one for each layer; None if `key` is None (no dropout)."""
    return None if key is None else jax.random.split(key, num)


class Stack(nnx.Module):
    """The layers of an encoder or a decoder; the final norm in pre-norm models; the shared relative position biases.

    layers: those of another stack, whose parameters this stack then has too; None: new layers. The final norm and the
      biases are always the stack's own: the biases of an encoder and of a decoder are of different distances.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        causal: bool,
        cross_attention: bool = False,
        layers: Layer | None = None,
        rngs: nnx.Rngs,
    ):
        self.config = config
        self.causal = causal
        self.layers = layers or stack_layers(
            lambda rngs: Layer(config, cross_attention=cross_attention, rngs=rngs), config.num_layers, rngs
        )
        if config.positions == "relative":
            self.relative_position_bias = RelativePositionBias(config, bidirectional=not causal, rngs=rngs)
        if config.norm_position == "pre":
            self.final_norm = FinalNorm(config, rngs=rngs)

    def attention_context(
        self,
        positions_BxL: Array,
        segment_ids_BxL: Array,
        key_segment_ids_BxS: Array,
        *,
        key_positions_BxS: Array | None = None,
        bidirectional_mask: Array | None = None,
        order_BxL: Array | None = None,
        encoder_segment_ids_BxE: Array | None = None,
        encoder_positions_BxE: Array | None = None,
        query_offset: Array | None = None,
    ) -> AttentionContext:
        """Returns the context for rows of L positions. The self-attention mask is `attention_mask` of the arguments.

        Without a cache, the keys are those of the row itself and S is L. With a cache, S is the length of the cache
        and `query_offset` is the index of the first of the L positions in the cache.

        key_positions: with a cache, the positions of its keys; None: those of the row.
        encoder_segment_ids, encoder_positions: for cross-attention or merged attention; None: for neither.
        """
        config, bias, angles, cross, encoder_angles = self.config, None, None, None, None
        index = 0 if query_offset is None else query_offset
        if config.positions == "relative":
            bias = self.relative_position_bias(segment_ids_BxL.shape[1], key_segment_ids_BxS.shape[1], index)
        elif config.positions == "rope":
            of_encoder = encoder_segment_ids_BxE, encoder_positions_BxE
            angles, encoder_angles = self._rotations(positions_BxL, segment_ids_BxL, *of_encoder)
        attention_fn = make_attention_fn(
            config,
            segment_ids_BxL,
            key_segment_ids_BxS,
            causal=self.causal,
            bidirectional_mask=bidirectional_mask,
            order_BxL=order_BxL,
            query_offset=query_offset,
            bias_1xHxQxS=bias,
            encoder_segment_ids_BxE=encoder_segment_ids_BxE if config.merged_attention else None,
        )
        if encoder_segment_ids_BxE is not None and not config.merged_attention:
            cross = make_attention_fn(
                config, segment_ids_BxL, encoder_segment_ids_BxE, causal=False, query_offset=query_offset
            )
        of_rows = positions_BxL, key_positions_BxS, encoder_segment_ids_BxE
        local = self._local(*of_rows) if config.global_every > 1 else None
        return AttentionContext(attention_fn, angles, cross, index, local, encoder_rotation=encoder_angles)

    def _rotations(
        self,
        positions_BxL: Array,
        segment_ids_BxL: Array,
        encoder_segment_ids_BxE: Array | None,
        encoder_positions_BxE: Array | None,
    ) -> tuple[Rotation, Rotation | None]:
        """Returns the angles of the row and of the encoder's keys. Arguments as for `attention_context`."""
        config, encoder_angles = self.config, None
        if encoder_segment_ids_BxE is not None and encoder_positions_BxE is not None and config.continuous_positions:
            encoder_angles = self.encoder_rotation(encoder_positions_BxE)
            of_encoder = encoder_positions_BxE, encoder_segment_ids_BxE
            positions_BxL = continued_positions(positions_BxL, segment_ids_BxL, *of_encoder)
        return rotation(config, positions_BxL), encoder_angles

    def encoder_rotation(self, positions_BxE: Array) -> Rotation | None:
        """Returns the angles of the encoder's keys for the decoder; None without model.continuous_positions."""
        return rotation(self.config, positions_BxE) if self.config.continuous_positions else None

    def _local(
        self, positions_BxL: Array, key_positions_BxS: Array | None, encoder_segment_ids_BxE: Array | None
    ) -> LocalAttention:
        """Returns what the local layers have in place. Arguments as for `attention_context`.

        Distances are those of positions, which are the same in the noisy and the clean copy of a text (block
        diffusion), and are not those in the row where the tokens of a blank follow the whole text (GLM).
        """
        config, keys_BxS = self.config, positions_BxL if key_positions_BxS is None else key_positions_BxS
        near_BxLxS = jnp.abs(positions_BxL[:, :, None] - keys_BxS[:, None]) <= config.local_distance
        if encoder_segment_ids_BxE is not None and config.merged_attention:  # all keys of the encoder are near
            padding = (0, 0), (0, 0), (0, encoder_segment_ids_BxE.shape[1])
            near_BxLxS = jnp.pad(near_BxLxS, padding, constant_values=True)
        angles = rotation(config, positions_BxL, is_local=True) if config.positions == "rope" else None
        return LocalAttention(near_BxLxS[:, None], angles)

    @property
    def layer_numbers(self) -> Array | None:
        """The numbers of the layers, int32 [N], to scan over; None where all layers compute the same."""
        return jnp.arange(self.config.num_layers) if self.config.layers_differ else None

    def __call__(
        self,
        x_BxLxD: Array,
        context: AttentionContext,
        *,
        encoded_BxExD: Array | None = None,
        cross: KeysValues | None = None,
        cached: KeysValues | None = None,
        dropout_key: Array | None = None,
    ) -> tuple[Array, KeysValues | None]:
        """Maps [B, L, D] to [B, L, D]. Also returns the updated cache [N, B, G, S, K], None without a cache.

        Cross-attention and merged attention take either the encoder's states, `encoded_BxExD`, from which each layer
        computes its keys and values when it runs, or `cross` [N, B, G, E, K], computed before by `cross_keys_values`.
        cached: as for `Layer`. No dropout if `dropout_key` is None.
        """
        graphdef, layers = nnx.split(self.layers)
        layers_key, final_key = split_key(dropout_key, 2)

        def body(x, scanned):
            layer_params, layer_cross, layer_cached, layer_key, number = scanned
            layer = nnx.merge(graphdef, layer_params)
            if encoded_BxExD is not None:
                layer_cross = layer.encoder_keys_values(encoded_BxExD, context.encoder_rotation)
            own = context if number is None else context.of_layer(self.config, number)
            return layer(x, own, cross=layer_cross, cached=layer_cached, dropout_key=layer_key)

        scanned = layers, cross, cached, layer_keys(layers_key, self.config.num_layers), self.layer_numbers
        x_BxLxD, cached = scan_layers(self.config, body, x_BxLxD, scanned)
        if self.config.norm_position == "pre":
            x_BxLxD = self.final_norm(x_BxLxD, dropout_key=final_key)
        return x_BxLxD, cached

    def cross_keys_values(self, encoded_BxExD: Array, positions_BxE: Array) -> KeysValues:
        """Returns all layers' keys and values of the encoder's states, [N, B, G, E, K], for all decoding steps."""
        graphdef, layers = nnx.split(self.layers)
        of_encoder = encoded_BxExD, self.encoder_rotation(positions_BxE)
        return jax.lax.map(lambda layer: nnx.merge(graphdef, layer).encoder_keys_values(*of_encoder), layers)
