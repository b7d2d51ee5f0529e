"""Memory and time of the loss in chunks relative to the plain loss: python -m benchmarks.loss [VOCABULARY ...]

Prints one JSON line for each size of the vocabulary (default: 32,768, 131,072 and 262,144): bytes and seconds of the
float32 loss and its gradients for the hidden states and the output table, plain and in chunks
(objectives/losses/chunked_cross_entropy.py). Bytes are those that the compiler reserves for temporaries and results;
the arguments are the same for both losses. The two losses run alternately. Seconds are medians, and time_ratio is the
median over the pairs of adjacent runs.
"""

import json
import statistics

import jax
import jax.numpy as jnp
from absl import flags

from benchmarks.measuring import alternating_seconds
from command.flags import parse_flags, run_command
from objectives.losses.chunked_cross_entropy import chunked_cross_entropy
from objectives.losses.cross_entropy import LossOptions, scored_tokens

ROWS, LENGTH, D_MODEL = 4, 512, 128  # the plain loss takes 4.4 GB at a vocabulary of 262,144
CHUNK_SIZE = 32
VOCABULARIES = (2**15, 2**17, 2**18)
RUNS = 5

_FLAGS = flags.FlagValues()


def loss(table_VxD: jax.Array, hidden_BxLxD: jax.Array, batch: dict[str, jax.Array], chunk_size: int) -> jax.Array:
    """Returns the mean loss per token with T5's z-loss, float32 []. chunk_size: 0 for the plain loss."""

    def logits_of(table_VxD: jax.Array, hidden: jax.Array) -> jax.Array:
        product = hidden.reshape(-1, D_MODEL) @ table_VxD.T
        return product.reshape(*hidden.shape[:-1], -1)

    options = LossOptions(num_groups=1, z_loss=1e-4, label_smoothing=0.0)
    sums = chunked_cross_entropy(
        logits_of, table_VxD, hidden_BxLxD, scored_tokens(batch), options, chunk_size=chunk_size
    )
    return sums.minimized_sum / sums.weight_sum


def measure(vocabulary: int) -> dict[str, float]:
    """Returns the bytes and seconds of both losses, and their ratios."""
    table_key, hidden_key, target_key = jax.random.split(jax.random.key(0), 3)
    table_VxD = jax.random.normal(table_key, (vocabulary, D_MODEL)) * D_MODEL**-0.5
    hidden_BxLxD = jax.random.normal(hidden_key, (ROWS, LENGTH, D_MODEL))
    batch = {
        "decoder_target_tokens": jax.random.randint(target_key, (ROWS, LENGTH), 0, vocabulary),
        "decoder_loss_weights": jnp.ones((ROWS, LENGTH)),
        "example_source": jnp.zeros((ROWS, LENGTH), jnp.int32),
    }
    arguments = table_VxD, hidden_BxLxD, batch
    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)), static_argnums=3)
    compiled = {name: step.lower(*arguments, size).compile() for name, size in (("plain", 0), ("chunked", CHUNK_SIZE))}
    seconds = alternating_seconds(compiled, arguments, RUNS)
    memory = {name: function.memory_analysis() for name, function in compiled.items()}
    size = {name: stats.temp_size_in_bytes + stats.output_size_in_bytes for name, stats in memory.items()}
    pairs = zip(seconds["chunked"], seconds["plain"], strict=True)
    return {
        "plain_bytes": size["plain"],
        "chunked_bytes": size["chunked"],
        "memory_ratio": round(size["chunked"] / size["plain"], 4),
        "plain_seconds": round(statistics.median(seconds["plain"]), 3),
        "chunked_seconds": round(statistics.median(seconds["chunked"]), 3),
        "time_ratio": round(statistics.median(chunked / plain for chunked, plain in pairs), 3),
    }


def main() -> None:
    """Measures each size of the vocabulary and prints its line."""
    vocabularies = parse_flags(_FLAGS, __doc__, positional=int) or VOCABULARIES
    setting = {"rows": ROWS, "length": LENGTH, "d_model": D_MODEL, "chunk_size": CHUNK_SIZE}
    device = jax.devices()[0].device_kind
    for vocabulary in vocabularies:
        line = {"benchmark": "loss", "vocabulary": vocabulary} | measure(vocabulary) | setting | {"device": device}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    run_command(main)
