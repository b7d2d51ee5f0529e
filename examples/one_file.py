"""A training loop of one's own, in one file: objective, layout, batches, model, loss and optimizer, and nothing hidden.

    python examples/one_file.py --objective=span_corruption
    python examples/one_file.py --objective=mlm --path='corpus/*.txt' --steps=500

Copy it and change it. It has no checkpoints, meshes or evaluations by denoiser: python -m train.main has. Its losses
are those of train.main for the same sizes, bit for bit (tests/test_one_file.py). docs/only_the_data.md takes it apart.
"""

import argparse
import functools
import itertools
import time

import jax
import jax.numpy as jnp
import optax

from configs import base
from data.store.store import open_or_build
from data.tokenizers.tokenizer import Tokenizer, make_tokenizer
from data.windows.batches import Batches, batches, loader
from data.windows.documents import Documents
from data.windows.split import split_documents
from experiment.config import DataConfig, from_mapping
from models.config import ModelConfig
from models.transformer import bind, init_params
from objectives import CLM, MLM, Objective, SpanCorruption, denoisers_of
from objectives.losses.cross_entropy import (
    LossOptions,
    LossSums,
    at_positions,
    cross_entropy,
    scored_at,
    scored_positions,
    scored_tokens,
    with_denominators,
)
from objectives.objective import RowShape
from objectives.rows.collate import Collator
from objectives.rows.window_specs import make_batch_spec, most_scored

# What to corrupt, and how to lay it out: any objective of objectives.OBJECTIVES but a mixture, whose learner is
# "token_prediction" (ELECTRA here would train its generator alone), on an architecture that it supports.
EXAMPLES: dict[str, tuple[Objective, str]] = {
    "clm": (CLM(), "decoder_only"),
    "span_corruption": (
        SpanCorruption(
            noise_density=0.15,
            mean_noise_span_length=3.0,
            random_roll=False,
            span_length_distribution="composition",
        ),
        "encoder_decoder",
    ),
    "mlm": (
        MLM(
            mask_rate=0.15,
            mask_token_rate=0.8,
            random_token_rate=0.1,
            mask_count="rounded",
            mask_unit="token",
            ngram_weights=(1.0,),
        ),
        "encoder_only",
    ),
}
LENGTH = 128  # tokens of a row, of each stack
BATCH_SIZE = 16  # rows
SEED = 0  # of the parameters and of the order of the data
PEAK_RATE, WARMUP_STEPS, CLIP_NORM = 2e-3, 20, 1.0
Z_LOSS = 1e-4


def read_text(path: str) -> tuple[Tokenizer, Documents, Documents]:
    """Returns the tokenizer, and the training and held-out documents, as ids of a memory-mapped token store.

    path: globs or two or more text files; "": the source code of Python's standard library.
    """
    fields = base.get_config().data.to_dict() | {"source": "text" if path else "stdlib", "path": path}
    data = from_mapping(DataConfig, fields, "data")
    tokenizer = make_tokenizer(data)  # bytes
    return tokenizer, *split_documents(open_or_build(data, tokenizer), data.split)


def make_collate(name: str, tokenizer: Tokenizer) -> Collator:
    """Returns the function from windows of raw text to a batch: the objective, then the layout of its examples in rows.

    Its batch_spec says how long the windows are: what the objective makes of a window fits in a row and is never cut.
    """
    objective, architecture = EXAMPLES[name]
    denoisers = denoisers_of(objective, name)  # a table of one row; a mixture's has a row for each objective
    row_shape = RowShape(architecture, inputs_length=LENGTH, targets_length=LENGTH, examples_per_row=1)
    spec, _ = make_batch_spec(denoisers, row_shape, tokenizer.vocab, documents="join")
    return Collator(denoisers, spec, row_shape, tokenizer.vocab, bidirectional_inputs=True)


def make_batches(documents: Documents, collate: Collator) -> Batches:
    """Returns batches by number, without end: batch n is a function of the arguments and n alone."""
    rows = range(BATCH_SIZE)  # of all processes together; a process may read its own
    return batches(documents, collate.batch_spec, collate, batch_size=BATCH_SIZE, local_rows=rows, seed=SEED)


def make_model(name: str, vocab_size: int) -> ModelConfig:
    """Returns the Transformer's config: the defaults of configs/base.py, and what follows from data and objective."""
    objective, architecture = EXAMPLES[name]
    return ModelConfig(
        **base.get_config().model.to_dict()
        | {"architecture": architecture, "vocab_size": -(-vocab_size // 128) * 128, "max_length": LENGTH},
        dtype="float32",
        has_prefix=objective.has_inputs,  # on a decoder alone, inputs see each other
        one_segment=True,  # a row has one example
    )


def sums_of(params, batch, *, model: ModelConfig, num_logits: int) -> LossSums:
    """Returns the sums of the batch's loss: negative log-likelihood, correct predictions and loss weights.

    num_logits: at how many positions of a row logits are computed. An MLM scores a seventh of them.
    """
    transformer = bind(model, params)
    hidden_BxLxD = transformer.hidden(batch)  # with dropout: hidden(batch, dropout_key=key)
    scored = scored_tokens(batch)  # targets, weights and groups, of the decoder or of the encoder
    if num_logits < hidden_BxLxD.shape[1]:
        positions_BxK = scored_positions(scored.weights_BxL, num_logits)
        hidden_BxLxD, scored = at_positions(hidden_BxLxD, positions_BxK), scored_at(scored, positions_BxK)
    options = LossOptions(num_groups=1, z_loss=Z_LOSS, label_smoothing=0.0)
    return with_denominators(cross_entropy(transformer.logits(hidden_BxLxD), scored, options), batch)


def train(name: str, *, path: str = "", steps: int = 200, log_every: int = 20) -> list[float]:
    """Trains the example `name` and returns the loss of each step, in nats per scored token, before its update."""
    tokenizer, train_documents, heldout_documents = read_text(path)
    collate, model = make_collate(name, tokenizer), make_model(name, tokenizer.vocab.size)
    scored = most_scored(collate.denoisers, collate.batch_spec, collate.row_shape)
    num_logits = scored if 2 * scored <= LENGTH else LENGTH
    loss_sums = functools.partial(sums_of, model=model, num_logits=num_logits)

    rate = optax.warmup_cosine_decay_schedule(0.0, PEAK_RATE, WARMUP_STEPS, steps, end_value=0.1 * PEAK_RATE)
    adamw = optax.adamw(rate, b1=0.9, b2=0.98, eps=1e-8, weight_decay=0.0)
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP_NORM), adamw)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def train_step(params, opt_state, batch):
        def loss(params):
            sums = loss_sums(params, batch)
            return sums.minimized_sum / jnp.maximum(sums.weight_sum, 1.0), sums

        grads, sums = jax.grad(loss, has_aux=True)(params)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, sums

    params = jax.jit(functools.partial(init_params, model))(jax.random.key(SEED))
    opt_state = optimizer.init(params)
    print(f"{name}, {model.architecture}: {sum(x.size for x in jax.tree.leaves(params)):,} parameters")
    losses, began = [], time.perf_counter()
    training_batches = loader(make_batches(train_documents, collate), start=0, threads=2, prefetch=16)
    for step, batch in enumerate(itertools.islice(training_batches, steps), start=1):
        params, opt_state, sums = train_step(params, opt_state, batch)
        losses.append(float(sums.loss_sum) / float(sums.weight_sum))
        if step % log_every == 0:
            accuracy, seconds = float(sums.correct_sum / sums.weight_sum), time.perf_counter() - began
            print(f"{step:>6}  loss {losses[-1]:.3f}  accuracy {accuracy:.3f}  {step / seconds:.1f} steps/s")

    heldout = make_batches(heldout_documents, collate)
    evaluated = [jax.jit(loss_sums)(params, heldout[n]) for n in range(8)]
    total, weight = (sum(float(getattr(sums, field)) for sums in evaluated) for field in ("loss_sum", "weight_sum"))
    print(f"held-out loss {total / weight:.3f} over {weight:.0f} tokens of 8 batches")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objective", choices=EXAMPLES, default="span_corruption")
    parser.add_argument("--path", default="", help="two or more text files, or globs; default: the standard library")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.steps <= WARMUP_STEPS:
        parser.error(f"--steps={arguments.steps} must be above {WARMUP_STEPS}, the steps of the warm-up")
    train(arguments.objective, path=arguments.path, steps=arguments.steps)
