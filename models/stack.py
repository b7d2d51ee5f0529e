"""A stack of identical layers, scanned: parameters have a leading layer axis, and one body is compiled for all."""

from typing import NamedTuple

import jax
from flax import nnx
from jax import Array

from models.attention import Attend, Attention, KeysValues
from models.config import ModelConfig
from models.kernels import attend_by
from models.layers import MLP, Norm, dropout, split_key
from models.placement import placed
from models.positions import RelativePositionBias, Rotation, rotation
from models.remat import rematerialized


class Visibility(NamedTuple):
    """Who sees whom, and from how far: the same for every layer of a stack."""

    attend: Attend
    rotation: Rotation | None
    cross_attend: Attend | None


class Layer(nnx.Module):
    """Self attention, cross attention where the stack has it, feed-forward; each with its norm and residual."""

    def __init__(self, config: ModelConfig, *, cross_attention: bool, rngs: nnx.Rngs):
        self.config = config
        self.self_attention_norm = Norm(config, rngs=rngs)
        self.self_attention = Attention(config, rngs=rngs)
        if cross_attention:
            self.cross_attention_norm = Norm(config, rngs=rngs)
            self.cross_attention = Attention(config, rngs=rngs)
        self.mlp_norm = Norm(config, rngs=rngs)
        self.mlp = MLP(config, rngs=rngs)

    def __call__(
        self,
        x_BxLxD: Array,
        visibility: Visibility,
        *,
        cross: KeysValues | None = None,
        cached: KeysValues | None = None,
        cache_index: Array | None = None,
        dropout_key: Array | None = None,
    ) -> tuple[Array, KeysValues | None]:
        """[B, L, D] -> [B, L, D], and `cached` with this call's keys and values written from `cache_index` on."""
        self_key, cross_key, mlp_key = split_key(dropout_key, 3)
        x = x_BxLxD

        query, keys_values = self.self_attention.queries_keys_values(
            self._enter(self.self_attention_norm, x), visibility.rotation
        )
        if cached is not None:
            keys_values = cached = _write(cached, keys_values, cache_index)
        y = self.self_attention(query, keys_values, attend=visibility.attend, dropout_key=self_key)
        x = self._leave(self.self_attention_norm, x, y)

        if cross is not None:
            query = self.cross_attention.queries(self._enter(self.cross_attention_norm, x))
            y = self.cross_attention(query, cross, attend=visibility.cross_attend, dropout_key=cross_key)
            x = self._leave(self.cross_attention_norm, x, y)

        y = self.mlp(self._enter(self.mlp_norm, x), dropout_key=mlp_key)
        return placed(self._leave(self.mlp_norm, x, y)), cached

    def _enter(self, norm: Norm, x: Array) -> Array:
        return norm(x) if self.config.norm_position == "pre" else x

    def _leave(self, norm: Norm, x: Array, y: Array) -> Array:
        return x + y if self.config.norm_position == "pre" else norm(x + y)


def _write(cached: KeysValues, new: KeysValues, index: Array) -> KeysValues:
    return KeysValues(*(jax.lax.dynamic_update_slice_in_dim(c, n, index, 2) for c, n in zip(cached, new, strict=True)))


class Stack(nnx.Module):
    """N layers and, in pre-norm models, the norm after the last; the relative bias table that the layers share."""

    def __init__(self, config: ModelConfig, *, causal: bool, cross_attention: bool, rngs: nnx.Rngs):
        self.config = config
        self.causal = causal

        @nnx.split_rngs(splits=config.num_layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked_layers(rngs: nnx.Rngs) -> Layer:
            return Layer(config, cross_attention=cross_attention, rngs=rngs)

        self.layers = stacked_layers(rngs)
        if config.positions == "relative":
            self.relative_position_bias = RelativePositionBias(config, bidirectional=not causal, rngs=rngs)
        if config.norm_position == "pre":
            self.final_norm = Norm(config, rngs=rngs)

    def visibility(
        self,
        positions_BxL: Array,
        segment_ids_BxL: Array,
        key_segment_ids_BxS: Array,
        *,
        bidirectional_mask_BxS: Array | None = None,
        order_BxL: Array | None = None,
        encoder_segment_ids_BxE: Array | None = None,
        query_offset: Array | None = None,
    ) -> Visibility:
        """Without a cache the keys are the row itself; with one, query i stands at index `query_offset` + i of them."""
        config, cross_attend, bias, turn = self.config, None, None, None
        if config.positions == "relative":
            bias = self.relative_position_bias(
                segment_ids_BxL.shape[1],
                key_segment_ids_BxS.shape[1],
                0 if query_offset is None else query_offset,
            )
        elif config.positions == "rope":
            turn = rotation(positions_BxL, config.head_dim, config.rope_theta)
        attend = attend_by(
            config,
            segment_ids_BxL,
            key_segment_ids_BxS,
            causal=self.causal,
            bidirectional_mask_BxS=bidirectional_mask_BxS if config.has_prefix else None,
            order_BxL=order_BxL,
            query_offset=query_offset,
            bias_1xHxQxS=bias,
        )
        if encoder_segment_ids_BxE is not None:
            cross_attend = attend_by(
                config, segment_ids_BxL, encoder_segment_ids_BxE, causal=False, query_offset=query_offset
            )
        return Visibility(attend, turn, cross_attend)

    def __call__(
        self,
        x_BxLxD: Array,
        visibility: Visibility,
        *,
        encoded_BxExD: Array | None = None,
        cross: KeysValues | None = None,
        cached: KeysValues | None = None,
        cache_index: Array | None = None,
        dropout_key: Array | None = None,
    ) -> tuple[Array, KeysValues | None]:
        """[B, L, D] -> [B, L, D], and the cache with this call's keys and values written in, if there is one.

        Cross attention reads `encoded_BxExD`, of which each layer makes its keys and values as it runs, or `cross`
        [N, B, G, E, K], made before (`cross_keys_values`). `cached` is [N, B, G, S, K].
        """
        graphdef, layers = nnx.split(self.layers)
        layers_key, final_key = split_key(dropout_key, 2)
        layer_keys = None if layers_key is None else jax.random.split(layers_key, self.config.num_layers)

        def body(x, scanned):
            layer_params, layer_cross, layer_cached, layer_key = scanned
            layer = nnx.merge(graphdef, layer_params)
            if encoded_BxExD is not None:
                layer_cross = layer.cross_attention.keys_values(encoded_BxExD)
            return layer(
                x,
                visibility,
                cross=layer_cross,
                cached=layer_cached,
                cache_index=cache_index,
                dropout_key=layer_key,
            )

        x_BxLxD, cached = jax.lax.scan(
            rematerialized(self.config, body),
            x_BxLxD,
            (layers, cross, cached, layer_keys),
            unroll=self.config.scan_unroll,
        )
        if self.config.norm_position == "pre":
            x_BxLxD = self.final_norm(x_BxLxD)
            x_BxLxD = dropout(x_BxLxD, self.config.dropout_rate, final_key, shared_axis=1)
        return x_BxLxD, cached

    def cross_keys_values(self, encoded_BxExD: Array) -> KeysValues:
        """Every layer's keys and values of the encoder's states, [N, B, G, E, K]: for decoding, which reuses them."""
        graphdef, layers = nnx.split(self.layers)
        return jax.lax.map(lambda layer: nnx.merge(graphdef, layer).cross_attention.keys_values(encoded_BxExD), layers)
