"""Distillation: how far a model's predictions are from those of a teacher, at the scored tokens."""

from typing import Literal

import jax
import jax.numpy as jnp

Divergence = Literal["forward", "reverse", "jensen_shannon"]


def divergences(
    logits_BxLxV: jax.Array,
    teacher_logits_BxLxV: jax.Array,
    *,
    divergence: Divergence,
    temperature: float,
    top_k: int,
) -> jax.Array:
    """Returns the divergence of each position, float32 [B, L], in nats, with p of the teacher and q of the model.

    "forward" is KL(p || q) (Hinton et al. 2015, arXiv 1503.02531), "reverse" KL(q || p) (MiniLLM, Gu et al. 2024, arXiv
    2306.08543), "jensen_shannon" (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2, as GKD's with beta = 1/2 (Agarwal
    et al. 2024, arXiv 2306.13649). All sums are over the whole vocabulary, so unlike in these papers no sample of the
    model is needed.

    With `top_k`, the outcomes are the teacher's k likeliest tokens, the first of equal ones, and all other tokens
    together. So p and q keep their whole probability. A p that is renormalized over the k tokens would have its minimum
    at another q than the teacher's.

    Args:
      logits_BxLxV, teacher_logits_BxLxV: float [B, L, V], finite; computed in float32.
      divergence: see above.
      temperature: divides both logits, above 0. The result is not multiplied by its square.
      top_k: in 0, ..., V - 1; 0: every token is an outcome.
    """
    log_q, log_p = (
        jax.nn.log_softmax(logits.astype(jnp.float32) / temperature) for logits in (logits_BxLxV, teacher_logits_BxLxV)
    )
    if not top_k:
        return _terms(log_p, log_q, divergence).sum(axis=-1)
    is_top_BxLxV = _is_top(teacher_logits_BxLxV, top_k)
    rest_p_BxL, rest_q_BxL = (jax.nn.logsumexp(log, axis=-1, where=~is_top_BxLxV) for log in (log_p, log_q))
    of_top_BxL = jnp.where(is_top_BxLxV, _terms(log_p, log_q, divergence), 0).sum(axis=-1)
    return of_top_BxL + _terms(rest_p_BxL, rest_q_BxL, divergence)


def _terms(log_p: jax.Array, log_q: jax.Array, divergence: Divergence) -> jax.Array:
    """Returns what each outcome adds to the divergence. A probability that rounds to 0 adds 0."""
    if divergence == "forward":
        return jnp.exp(log_p) * (log_p - log_q)
    if divergence == "reverse":
        return jnp.exp(log_q) * (log_q - log_p)
    log_m = jnp.logaddexp(log_p, log_q) - jnp.log(2.0)
    return (jnp.exp(log_p) * (log_p - log_m) + jnp.exp(log_q) * (log_q - log_m)) / 2


def _is_top(logits_BxLxV: jax.Array, k: int) -> jax.Array:
    """Returns whether each logit is among the k largest of its position, as jax.lax.top_k orders them, bool."""

    def of_position(logits_V: jax.Array) -> jax.Array:
        _, top_K = jax.lax.top_k(logits_V, k)
        return jnp.zeros(logits_V.shape, bool).at[top_K].set(True, unique_indices=True, mode="promise_in_bounds")

    return jax.vmap(jax.vmap(of_position))(logits_BxLxV)
