"""Fills in the masks of prompts with a masked language model."""

import dataclasses
import functools
from collections.abc import Generator, Iterator, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from contract.batch import Batch
from contract.errors import ConfigError
from contract.vocab import Vocab
from data.tokenizers.tokenizer import Tokenizer
from experiment.experiment import Experiment
from generate.prompts import check_length, to_sequences
from generate.sampling import allowed_tokens, check_finite, hash_of, padded_length, padded_rows
from models.config import ModelConfig
from models.parameters import Params
from models.transformer import bind
from objectives.algebra.sequences import Sequences
from objectives.objective import Masked, RowShape
from objectives.prompting import FillMasks
from objectives.rows import layout
from objectives.rows.clean_copies import block_numbers
from run.restore import not_a_language_model

# Which masks are filled in first: those whose two likeliest tokens differ most in probability (Kim et al. 2025, arXiv
# 2502.06768; Dream's topk_margin), with the likeliest token (LLaDA's low_confidence and Dream's maskgit_plus at
# temperature 0; above it, they rank by the drawn token), with the least entropy, the leftmost ones, random ones, or all
# at once.
Order = Literal["margin", "probability", "entropy", "left_to_right", "random", "once"]


def check_order(prompting: FillMasks, order: Order | Literal[""] | None) -> None:
    """Raises ConfigError for an order of the masks that the model cannot use. order: None or "" for its own."""
    if prompting.order == "once" and order not in (None, "", "once"):
        raise ConfigError(
            f"--order={order} fills in some masks before others, and this run's model was trained to predict all at "
            "once: set --order=once, or leave it out"
        )


def fills_masks(experiment: Experiment, text: str) -> bool:
    """Returns whether the run's model fills in the masks of a prompt, and does not write after it or at its sentinels.

    A model that does both, as those of configs/hybrid.py and configs/sigma_gpt.py, fills in masks where the prompt has
    one.
    """
    promptings = [denoiser.objective.prompting for denoiser in experiment.denoisers]
    fills = any(prompting is not None and prompting.of_masks is not None for prompting in promptings)
    names = [name for name, id_ in experiment.vocab.ids_by_name().items() if id_ == experiment.vocab.mask]
    fills_only = all(isinstance(prompting, FillMasks) for prompting in promptings)
    return fills_only or (fills and any(name in text for name in names))


def read_masked_prompt(
    experiment: Experiment, text: str, where: str = "--prompt", max_tokens: int | None = None
) -> np.ndarray:
    """Returns the ids, int32 [n], of a prompt with masks. where: names the prompt in messages.

    max_tokens: the number of masks that are appended to a prompt without masks.

    Raises ConfigError if the prompt has no mask, if it has masks and `max_tokens` is given, if it is longer than a row,
    and for a run that does not train the prediction of tokens.
    """
    vocab = experiment.vocab
    if experiment.denoisers[0].objective.prompting is None:
        raise not_a_language_model(experiment)
    prompting = masks_prompting(experiment)
    ids = experiment.tokenizer.encode_with_specials(text, prompting.special_tokens(vocab), where=where)
    if max_tokens is not None:
        if vocab.mask in ids:
            raise ConfigError(f"--max_tokens={max_tokens} appends masks, and {where} has masks: remove one of the two")
        ids = np.concatenate([ids, np.full(max_tokens, vocab.mask, np.int32)])
    if vocab.mask not in ids:
        mask = vocab.names()[vocab.mask]
        raise ConfigError(
            f"{where} has no {mask}, and this run's model fills in masks: write {mask} for each token, or add "
            "--max_tokens=N, which appends N masks"
        )
    check_row(experiment, ids, where)
    return ids


def check_row(experiment: Experiment, text: np.ndarray, where: str) -> None:
    """Raises ConfigError for a `text`, ids int32 [n], that is longer than a row of training. where: its name."""
    prompting, length = masks_prompting(experiment), experiment.data.inputs_length
    needed, field = len(prompting.lay_out(text, experiment.vocab).inputs), f"data.inputs_length={length}"
    if prompting.block_length:  # a clean copy follows the text
        length, field = length // 2, f"half of {field}"
    check_length(needed, length, field, where)


def masked_batch(experiment: Experiment, texts: Sequence[np.ndarray], prompting: FillMasks | None = None) -> Batch:
    """Returns a row of each of `texts`, ids int32 [n] with masks, laid out as in training: for MLM [CLS] text [SEP].

    A run with a single UniLM pattern reads a text in this pattern, with the text as a single segment.

    prompting: of the denoiser that fills in the masks; None: that of the first.
    """
    prompting = prompting or masks_prompting(experiment)
    laid_out = [prompting.lay_out(text, experiment.vocab).inputs for text in texts]
    orders = [attention_order(experiment, inputs[None]) for inputs in laid_out]
    order = None if orders[0] is None else to_sequences([of_text[0] for of_text in orders]).tokens
    batch = masked_rows(experiment, to_sequences(laid_out), experiment.data.inputs_length, prompting, order)
    return batch | _masks_after_visible(batch, texts, experiment.vocab.mask) if prompting.visible_first else batch


def _masks_after_visible(batch: Batch, texts: Sequence[np.ndarray], mask: int) -> Batch:
    """Returns the fields of rows whose masks are each predicted after all visible tokens of their text.

    The place of each mask reads the last visible token once more, and is seen by no other place.

    batch: rows of the visible tokens and then the masks, shifted right. texts: ids int32 [n], one for each row.
    """
    tokens = batch["decoder_input_tokens"].copy()
    positions, targets, order = np.zeros((3, *tokens.shape), np.int32)
    for row, text in enumerate(texts):
        visible, masks = np.flatnonzero(text != mask), np.flatnonzero(text == mask)
        count, slots = len(visible), np.arange(len(text))
        tokens[row, count : len(text)] = tokens[row, count]
        positions[row, slots] = np.append(0, visible + 1)[np.minimum(slots, count)]
        targets[row, slots] = np.append(visible, masks)
        order[row, slots] = np.minimum(count - 1 - slots, 0)  # -1, -2, ... at the masks
    return {
        "decoder_input_tokens": tokens,
        "decoder_positions": positions,
        "decoder_target_positions": targets,
        "decoder_attention_order": order,
    }


def masks_prompting(experiment: Experiment) -> FillMasks:
    """Returns how the first denoiser that fills in masks is prompted. The run must have one."""
    promptings = (denoiser.objective.prompting for denoiser in experiment.denoisers)
    of_masks = (prompting.of_masks for prompting in promptings if prompting is not None)
    return next(prompting for prompting in of_masks if prompting is not None)


def attention_order(experiment: Experiment, tokens: np.ndarray) -> np.ndarray | None:
    """Returns the attention order, int32 [E, W], of a run with a single UniLM pattern. tokens: laid out, int32 [E, W].

    None for a run with several patterns, or with none: all tokens attend to each other.
    """
    prompting = experiment.denoisers[0].objective.prompting
    has_one_pattern = len(experiment.denoisers) == 1 and isinstance(prompting, FillMasks)
    return prompting.attention_order(tokens) if has_one_pattern else None


def masked_rows(
    experiment: Experiment, inputs: Sequences, length: int, prompting: FillMasks, order: np.ndarray | None = None
) -> Batch:
    """Returns a batch of rows of `length` positions, one for each of `inputs`, laid out and with masks to predict.

    The targets are the inputs: what the masks hide is not known here. A clean copy of a text in blocks, which follows
    the text in its row, has these masks too.

    prompting: of the denoiser that laid out `inputs`.
    order: the attention order, int32 [E, W].
    """
    tokens, vocab, num_rows = inputs.tokens, experiment.vocab, len(inputs.lengths)
    token_types = np.zeros_like(tokens) if experiment.model.num_token_types else None
    in_rows = {"shifted": np.full(num_rows, prompting.shifted), "causal": np.full(num_rows, prompting.causal)}
    examples = Masked(inputs, tokens, tokens == vocab.mask, token_types=token_types, attention_order=order, **in_rows)
    if prompting.block_length:
        blocks = np.broadcast_to(block_numbers(tokens.shape[1], prompting.block_length), tokens.shape)
        examples = examples._replace(blocks=blocks)
    shape = RowShape(experiment.model.architecture, length, 0, 1)
    place = layout.decoder_only if experiment.model.has_decoder else layout.encoder_only
    return place(examples, np.arange(num_rows), np.zeros(num_rows, np.int32), num_rows, shape, vocab)


def mask_probabilities(
    experiment: Experiment,
    params: Params,
    texts: Sequence[np.ndarray],
    *,
    batch_size: int = 16,
    prompting: FillMasks | None = None,
) -> Iterator[np.ndarray]:
    """Yields for each of `texts`, ids int32 [n], the probability of each token at each mask: float32 [masks, V].

    Masks are independent: the prediction at a mask does not depend on how the other masks are filled. Of a
    model that was trained on blocks, use the probabilities in the first block with a mask: later blocks read its masks
    as if they were clean.

    batch_size: how many texts the model reads together; the probabilities do not depend on it, except for rounding.
    prompting: as for `masked_batch`.

    Raises ConfigError where logits are NaN or infinite.
    """
    vocab, prompting = experiment.vocab, prompting or masks_prompting(experiment)
    for begin in range(0, len(texts), batch_size):
        of_batch = texts[begin : begin + batch_size]
        rows = [*of_batch, *of_batch[:1] * (padded_rows(len(of_batch)) - len(of_batch))]
        batch = masked_batch(experiment, rows, prompting)
        # A token that is predicted where the token before it is read has its own index there: the start token is first.
        masks = [np.flatnonzero(prompting.lay_out(text, vocab).inputs == vocab.mask) for text in of_batch]
        positions = np.zeros((len(next(iter(batch.values()))), padded_length(max(map(len, masks)))), np.int32)
        for row, of_text in enumerate(masks):
            positions[row, : len(of_text)] = of_text
        probabilities = np.asarray(_probabilities(experiment.model, params, batch, positions, vocab))
        of_texts = [probabilities[row, : len(of_text)] for row, of_text in enumerate(masks)]
        check_finite(experiment, not any(np.isnan(of_text).any() for of_text in of_texts))
        yield from of_texts


def first_masks(probabilities_MxV: np.ndarray, order: Order, count: int, random: np.random.Generator) -> np.ndarray:
    """Returns which `count` masks are filled in first, int [count]: numbers of masks.

    probabilities: of the tokens at the masks that are left. random: of the order "random".
    """
    if order in ("left_to_right", "once"):
        return np.arange(count)
    if order == "random":
        return random.permutation(len(probabilities_MxV))[:count]
    if order == "entropy":
        scores_M = (probabilities_MxV * np.log(np.maximum(probabilities_MxV, 1e-30))).sum(axis=-1)
    else:
        second_M, first_M = np.partition(probabilities_MxV, -2, axis=-1)[:, -2:].T
        scores_M = first_M if order == "probability" else first_M - second_M
    return np.argsort(-scores_M, kind="stable")[:count]


@dataclasses.dataclass(frozen=True)
class Unmasking:
    """How the masks of a text are filled in, step by step.

    Attributes:
      order: which masks come first; "once" makes one step of all.
      steps: of about equally many masks of a block; 0: one mask in each step.
      block_length: how many masks are a block. Blocks are filled in from left to right (semi-autoregressive decoding of
        Arriola et al. 2025, arXiv 2503.09573, and LLaDA); 0: all masks are one block.
      remask: the probability that a token which was filled in, in this block, is hidden again before the next step, at
        most the masks that are left after the step by the tokens that are filled in before it (the capped schedule of
        ReMDM, Wang et al. 2025, arXiv 2503.00307). That step fills in so many more, and the last step hides none.
      temperature: of the draws; 0: the likeliest token.
      trained_on: tokens of a block of the text, which the model was trained on (FillMasks.block_length). The masks of a
        block of the text are then a block; 0: as `block_length` says.
    """

    order: Order
    steps: int = 0
    block_length: int = 0
    remask: float = 0.0
    temperature: float = 0.0
    trained_on: int = 0


def fill_in(
    experiment: Experiment,
    params: Params,
    texts: Sequence[np.ndarray],
    unmasking: Unmasking,
    *,
    seed: int,
    num_samples: int = 1,
    batch_size: int = 16,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields each text, ids int32 [n], `num_samples` times, with its masks filled in, and what its masks could be.

    The model reads a text again in each step, with the tokens that are filled in. Visible tokens never change.

    Args:
      texts: ids int32 [n], each with one mask or more.
      seed: of the draws, of the order "random" and of what is hidden again, which are a function of the seed, the
        text and the number of the sample, and do not depend on the other texts.
      batch_size: how many texts the model reads together.

    The second array is the probability of each token at each mask before the first step, float32 [masks, V]; with a
    model that was trained on blocks, before the first step of the mask's block.
    """
    mask = experiment.vocab.mask
    rows = [(text, sample) for text in texts for sample in range(num_samples)]
    for begin in range(0, len(rows), batch_size):
        of_batch = [text.copy() for text, _ in rows[begin : begin + batch_size]]
        samples = [sample for _, sample in rows[begin : begin + batch_size]]
        blocks = [_blocks(np.flatnonzero(text == mask), unmasking) for text in of_batch]
        steps = [
            _steps(text, mask, of_text, unmasking, np.random.default_rng([seed, hash_of(text), sample]))
            for text, of_text, sample in zip(of_batch, blocks, samples, strict=True)
        ]
        for each in steps:
            next(each)
        first: list[np.ndarray] = []
        unfilled = list(range(len(of_batch)))
        while unfilled:
            shown = [of_batch[k] for k in unfilled]
            found = list(mask_probabilities(experiment, params, shown, batch_size=batch_size))
            first = first or found
            if unmasking.trained_on:  # until now the masks of this block were predicted from masks in the blocks before
                for k, of_text in zip(unfilled, found, strict=True):
                    if len(of_text) in np.cumsum([len(block) for block in reversed(blocks[k])]):
                        first[k] = np.concatenate([first[k][: -len(of_text)], of_text])
            unfilled = [k for k, of_text in zip(unfilled, found, strict=True) if not steps[k].send(of_text)]
        yield from zip(of_batch, first, strict=True)


def first_block(masks: np.ndarray, block_length: int) -> np.ndarray:
    """Returns those of `masks`, int [n] ascending positions, that share a block of `block_length` with the first."""
    return masks[masks // block_length == masks[0] // block_length]


def _blocks(masks: np.ndarray, unmasking: Unmasking) -> list[np.ndarray]:
    """Returns the blocks of `masks`, int [n]."""
    number = np.arange(len(masks)) // (unmasking.block_length or len(masks))
    if unmasking.trained_on:
        number = masks // unmasking.trained_on
    return np.split(masks, 1 + np.flatnonzero(np.diff(number)))


def _steps(
    text: np.ndarray, mask: int, blocks: list[np.ndarray], unmasking: Unmasking, random: np.random.Generator
) -> Generator[bool, np.ndarray, None]:
    """Fills in the masks of `text`, in place. Yields before each step, which is sent the probabilities at all masks.

    blocks: the positions of the masks, block by block. Yields whether the text has no mask left.
    """
    for block in blocks:
        steps = 1 if unmasking.order == "once" else min(unmasking.steps or len(block), len(block))
        for steps_left in range(steps, 0, -1):
            hidden = block[text[block] == mask]
            count = -(-len(hidden) // steps_left)
            is_filled = text[block] != mask
            share = min(unmasking.remask, (len(hidden) - count) / max(is_filled.sum(), 1))  # ReMDM's cap
            again = block[is_filled & (random.random(len(block)) < share)]
            text[again] = mask
            probabilities_MxV = (yield False)[: len(hidden) + len(again)]  # the masks of later blocks follow
            chosen = first_masks(probabilities_MxV, unmasking.order, count + len(again), random)
            places = block[text[block] == mask][chosen]
            text[places] = _draw(probabilities_MxV[chosen], unmasking.temperature, random)
    yield True


def _draw(probabilities_NxV: np.ndarray, temperature: float, random: np.random.Generator) -> np.ndarray:
    """Returns a token of each distribution, int [N]; the likeliest one at temperature 0."""
    if temperature == 0:
        return probabilities_NxV.argmax(axis=-1)
    with np.errstate(divide="ignore", over="ignore"):
        # Relative to the greatest logit, so that a very small temperature gives -inf for the others.
        logits_NxV = np.log(probabilities_NxV.astype(np.float64))
        logits_NxV = (logits_NxV - logits_NxV.max(axis=-1, keepdims=True)) / temperature
    return (logits_NxV + random.gumbel(size=logits_NxV.shape)).argmax(axis=-1)


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A token for a mask."""

    id: int
    token: str  # its text within a text, with SentencePiece's space; a byte that is not a character as "<0xC3>"
    probability: float


def candidates(tokenizer: Tokenizer, probabilities: np.ndarray, count: int) -> list[list[Candidate]]:
    """Returns the `count` likeliest tokens for each mask. probabilities: float32 [masks, V]."""
    likeliest = np.argsort(-probabilities, axis=-1, kind="stable")[:, :count]
    return [
        [Candidate(int(id_), token_text(tokenizer, int(id_)), float(row[id_])) for id_ in ids]
        for ids, row in zip(likeliest, probabilities, strict=True)
    ]


def candidates_line(found: Sequence[Candidate]) -> str:
    """Returns the candidates for a mask as one line: the tokens in quotes, with white space escaped."""
    return "  ".join(f"{candidate.token!r} {candidate.probability:.3f}" for candidate in found)


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Returns the text of a token within a text; a byte that is only a part of a character is written "<0xC3>"."""
    text = tokenizer.decode(np.array([token]), inside=True)
    return tokenizer.piece(token) if "\ufffd" in text else text


@functools.partial(jax.jit, static_argnames=("config", "vocab"))
def _probabilities(
    config: ModelConfig, params: Params, batch: Batch, positions_BxM: np.ndarray, vocab: Vocab
) -> jax.Array:
    transformer = bind(config, params)
    states_BxMxD = jnp.take_along_axis(transformer.hidden(batch), positions_BxM[..., None], axis=1)
    logits_BxMxV = transformer.logits(states_BxMxD)
    allowed_V = allowed_tokens(vocab, config.vocab_size) & (jnp.arange(config.vocab_size) != vocab.mask)
    return jax.nn.softmax(jnp.where(allowed_V, logits_BxMxV, -jnp.inf), axis=-1)
