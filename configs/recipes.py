"""Published training recipes, shared by the experiments that use them.

A recipe for pre-training sets the optimizer, the precision, the intervals of a long run and, where it is the same for
all sizes, the length of a row. The experiment sets train.batch_size and train.steps.
"""

from typing import NamedTuple

from ml_collections import ConfigDict


def use_t5_recipe(config: ConfigDict) -> None:
    """Sets T5's recipe: rows of 512 tokens; Adafactor at 0.01 for 10,000 steps, then an inverse square root.

    Gradients are not clipped by their global norm: T5X's pre-training does not do so, and Adafactor clips each matrix's
    update. The tiny presets of T5's objectives deviate: AdamW scaled by the RMS of each matrix, with gradients clipped
    to a norm of 1. There clipping matters little: span corruption's held-out loss after 250 steps was 2.481 with it and
    2.483 without.

    With a relative position bias the attention probabilities, [heads, 512, 512] for each row and layer, take most of a
    step's memory and little of its computation: where memory is short, model.remat="dots" recomputes them. The
    experiment sets it for a machine (configs/machines.py).
    """
    config.data.update(inputs_length=512, targets_length=512)
    config.optimizer.update(name="adafactor", schedule="rsqrt", learning_rate=0.01, warmup_steps=10_000)
    config.optimizer.clip_norm = 0.0
    use_long_run(config)


def use_bert_recipe(config: ConfigDict) -> None:
    """Sets BERT's pre-training recipe: rows of 512 tokens; BERT's AdamW at 1e-4, with 10,000 steps of warm-up.

    Deviation: BERT's rows had 128 tokens for 90% of the steps, and 512 in the rest. In two runs: docs/chains.md.
    """
    config.data.inputs_length = 512
    use_bert_optimizer(config)
    config.optimizer.update(learning_rate=1e-4, warmup_steps=10_000)
    use_long_run(config)


def use_bert_optimizer(config: ConfigDict) -> None:
    """Sets BERT's AdamW, with a linear decay to 0. The experiment sets the learning rate and the warm-up.

    Only norms and biases are exempt from weight decay. Embeddings decay, as in BERT's, RoBERTa's, ELECTRA's and BART's
    code.

    Deviations: BERT's and ELECTRA's code does not correct the bias of Adam's moments, so its first steps are larger:
    6.5 times those here at the 10th update, 3.2 at the 100th, 1.03 at the 3000th. There the rate's line to 0 begins
    with the run and not after the warm-up, so rates are 1% lower, with 10,000 of 1,000,000 steps. In fairseq (RoBERTa,
    BART) norms and biases decay too.
    """
    config.optimizer.update(name="adamw", schedule="linear", final_learning_rate_fraction=0.0, b2=0.999, eps=1e-6)
    config.optimizer.update(weight_decay=0.01, no_decay=("norm", "bias"))


def use_llama_recipe(config: ConfigDict) -> None:
    """Sets Llama's recipe: AdamW at 3e-4, 2000 steps of warm-up, then a cosine decay to a tenth of the rate.

    Deviation: embeddings do not decay (optimizer.no_decay of configs/base.py); Llama's papers name no exception.
    """
    config.optimizer.update(name="adamw", schedule="cosine", learning_rate=3e-4, warmup_steps=2000)
    config.optimizer.update(final_learning_rate_fraction=0.1, b2=0.95, weight_decay=0.1)
    use_long_run(config)


def use_long_run(config: ConfigDict) -> None:
    """Sets bfloat16, and the intervals of logs, evaluations and checkpoints for a run of days.

    5000 steps of a large model are hours, which a failure must not cost: a checkpoint every half an hour.
    """
    config.precision = "bfloat16"
    config.train.update(log_every=100, eval_every=5000, eval_windows=8192, checkpoint_every=5000)
    config.train.checkpoint_minutes = 30.0


class EncoderRecipe(NamedTuple):
    """How an encoder of configs.architectures.ENCODERS is pre-trained, on batches of 4,608 rows of 1,024 tokens.

    decay: the last share of the steps, in which the learning rate falls. mask_rates: of the phases of the run, which
    begin at the shares `begins` of its steps.
    """

    learning_rate: float
    weight_decay: float  # of a step, not multiplied by the learning rate
    warmup_steps: int
    steps: int
    decay: float
    mask_rates: tuple[float, ...] = (0.3,)
    begins: tuple[float, ...] = ()
    b2: float = 0.98
    eps: float = 1e-6


# ModernBERT's learning rates and warm-ups are the paper's (2412.13663). Not repeated here: the rate of its large model
# fell to 5e-5 in the middle of the run, and a phase of long rows had a constant rate of 3e-4. All else, the decay too,
# is as in Ettin's code for models of these sizes. 2T tokens are 424,000 batches.
_MODERNBERT = EncoderRecipe(8e-4, 1e-5, 636, 424_000, decay=0.15)
# JHU-CLSP/ettin-encoder-vs-decoder, pretraining/configs/standard: 1.7T tokens, then 250B and 50B with other text and
# longer rows, in which the rate falls to a half, and to 0.02 of it. The rate of masks is 15% in the last 50B.
_ETTIN = EncoderRecipe(3e-3, 3e-4, 848, 424_000, decay=0.15, mask_rates=(0.3, 0.15), begins=(0.975,))
# mmBERT (2509.06888; JHU-CLSP/mmBERT): 2.3T, 600B and 100B tokens, which are 636,000 batches.
_MMBERT = EncoderRecipe(
    8e-4, 8e-5, 636, 636_000, decay=1 / 30, mask_rates=(0.3, 0.15, 0.05), begins=(23 / 30, 29 / 30), b2=0.95, eps=1e-8
)
ENCODERS = {
    "modernbert_base": _MODERNBERT,
    "modernbert_large": _MODERNBERT._replace(learning_rate=5e-4, warmup_steps=424),
    "ettin_17m": _ETTIN,
    "ettin_32m": _ETTIN,
    "ettin_68m": _ETTIN._replace(warmup_steps=636),
    "ettin_150m": _ETTIN._replace(learning_rate=8e-4, weight_decay=1e-5, warmup_steps=636),
    "ettin_400m": _ETTIN._replace(learning_rate=5e-4, weight_decay=1e-5, warmup_steps=424),
    # The two last parts are a third of the others'; so is the whole run here, which is our choice.
    "ettin_1b": _ETTIN._replace(learning_rate=5e-4, weight_decay=5e-5, warmup_steps=424, steps=141_000),
    "mmbert_small": _MMBERT._replace(warmup_steps=848),
    "mmbert_base": _MMBERT,
}


def use_encoder_recipe(config: ConfigDict, size: str) -> None:
    """Sets the recipe of ModernBERT, Ettin, mmBERT or NeoBERT for a size of configs.architectures.ENCODERS.

    Rows are 1,024 tokens, and the number of masks is probabilistic. 80% of the selected tokens are masked and 10%
    random, as the collator of transformers does; all are masked in NeoBERT, whose numbers are those of its code
    (chandar-lab/NeoBERT).

    Deviations: rows stay 1,024 tokens long in all phases, with one kind of text; no dropout after attention, where
    ModernBERT, Ettin and mmBERT have 10%; batches do not grow at the start. One decay, to 0.02 of the rate, replaces
    Ettin's two. The number of masks of a text is its expected number, rounded at random; the collator selects each
    token by itself. mmBERT's script of the base size begins with 25% of masks, its paper with 30%; its scripts of the
    small size have rates of 4e-4 and 4e-5 in the second and third phases, where the base size's is here. ModernBERT's
    large model began with the parameters of the base one. NeoBERT's code also decays the scales of norms.
    """
    config.data.inputs_length = 1024
    config.objective.update(mask_count="probabilistic")
    config.optimizer.update(name="adamw", no_decay=("norm", "bias"))
    use_long_run(config)
    if size == "neobert_base":
        config.objective.update(mask_rate=0.2, mask_token_rate=1.0, random_token_rate=0.0)
        config.optimizer.update(learning_rate=1e-4, warmup_steps=2000, b2=0.95, weight_decay=0.01)
        config.optimizer.update(schedule="cosine", cycles="0-900000", final_learning_rate_fraction=0.1)
        config.train.update(batch_size=2048, steps=1_000_000)
        return
    recipe = ENCODERS[size]
    config.objective.mask_rate = recipe.mask_rates[0]
    if recipe.begins:
        phases = dict(phase_steps=recipe.begins, phase_mask_rate=recipe.mask_rates[1:])
        config.objective.update(schedule="phases", **phases)
    config.optimizer.update(learning_rate=recipe.learning_rate, warmup_steps=recipe.warmup_steps, b2=recipe.b2)
    config.optimizer.update(name="stable_adamw", clip_norm=0.0, eps=recipe.eps)
    config.optimizer.update(weight_decay=recipe.weight_decay / recipe.learning_rate)
    config.optimizer.update(schedule="wsd", decay_fraction=recipe.decay, final_learning_rate_fraction=0.02)
    config.train.update(batch_size=4608, steps=recipe.steps)
