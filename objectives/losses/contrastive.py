"""InfoNCE as SimCSE uses it (Gao et al. 2021; princeton-nlp/SimCSE), and measures of embeddings."""

import jax
import jax.numpy as jnp

from objectives.losses.row_cross_entropy import Rows, RowSums, class_cross_entropy


def info_nce(
    queries_BxD: jax.Array, keys_BxD: jax.Array, *, temperature: float, rows: Rows, num_groups: int = 1
) -> RowSums:
    """InfoNCE (van den Oord et al. 2018) on cosine similarity / temperature, computed in float32.

    In one direction only, as in SimCSE: each query classifies the keys, but no key classifies the queries.

    Args:
      queries_BxD: float [B, D].
      keys_BxD: float [B, D]. Key i is the positive of query i; all other keys are negatives.
      temperature: divides the similarities.
      rows: the rows that are scored and whose keys are negatives of others.
      num_groups: the number of groups of rows.
    """
    logits_BxB = _products(_normalized(queries_BxD), _normalized(keys_BxD)) / temperature
    logits_BxB = jnp.where(rows.weights_B > 0, logits_BxB, -jnp.inf)
    return class_cross_entropy(logits_BxB, jnp.arange(len(queries_BxD)), rows, num_groups=num_groups)


def alignment(a_BxD: jax.Array, b_BxD: jax.Array, weights_B: jax.Array) -> jax.Array:
    """The squared distance of normalized a_i and b_i, summed over rows i, float32 [] (Wang & Isola 2020).

    weights_B: float32 [B], the factor of each row.
    """
    return (jnp.square(_normalized(a_BxD) - _normalized(b_BxD)).sum(axis=1) * weights_B).sum()


def uniformity(x_BxD: jax.Array, weights_B: jax.Array) -> jax.Array:
    """log of the mean of exp(-2 squared distance) over pairs of different normalized rows, float32 [].

    Wang & Isola 2020. The value is 0 if all rows are equal, and about -4 if they are uniform on a sphere of many
    dimensions. Needs two rows or more.

    weights_B: float32 [B], 0 for rows that are not counted.
    """
    x_BxD = _normalized(x_BxD)
    is_counted_B = weights_B > 0
    is_pair_BxB = is_counted_B[:, None] & is_counted_B & ~jnp.eye(len(x_BxD), dtype=bool)
    squared_distances_BxB = 2 - 2 * _products(x_BxD, x_BxD)
    exponents_BxB = jnp.where(is_pair_BxB, -2 * squared_distances_BxB, -jnp.inf)
    return jax.nn.logsumexp(exponents_BxB) - jnp.log(is_pair_BxB.sum(dtype=jnp.float32))


def _normalized(x_BxD: jax.Array) -> jax.Array:
    """Rows of length 1, in float32; a zero row stays zero."""
    x_BxD = x_BxD.astype(jnp.float32)
    return x_BxD * jax.lax.rsqrt(jnp.maximum(jnp.square(x_BxD).sum(axis=1, keepdims=True), 1e-12))


def _products(a_BxD: jax.Array, b_KxD: jax.Array) -> jax.Array:
    """float32 [B, K], at full precision even where the device's default float32 product is less precise."""
    return jnp.einsum("bd,kd->bk", a_BxD, b_KxD, precision=jax.lax.Precision.HIGHEST)
