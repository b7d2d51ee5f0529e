"""Published training recipes, shared by the experiments that use them.

A recipe for pre-training sets the optimizer, the precision, the intervals of a long run and, where it is the same for
all sizes, the length of a row. The experiment sets train.batch_size and train.steps.
"""

from ml_collections import ConfigDict


def use_t5_recipe(config: ConfigDict) -> None:
    """Sets T5's recipe: rows of 512 tokens; Adafactor at 0.01, 10,000 steps of warm-up, then an inverse square root.

    Gradients are not clipped by their global norm: T5X's pre-training does not do so, and Adafactor clips each matrix's
    update. The tiny presets of T5's objectives deviate: AdamW scaled by the RMS of each matrix, with gradients clipped
    to a norm of 1. There clipping matters little: span corruption's held-out loss after 250 steps was 2.481 with it and
    2.483 without.

    With a relative position bias the attention probabilities, [heads, 512, 512] for each row and layer, take most of a
    step's memory and little of its computation: where memory is short, model.remat="dots" recomputes them. The
    experiment sets it for a machine (configs/machines.py).
    """
    config.data.update(inputs_length=512, targets_length=512)
    config.optimizer.update(name="adafactor", schedule="inverse_sqrt", learning_rate=0.01, warmup_steps=10_000)
    config.optimizer.clip_norm = 0.0
    use_long_run(config)


def use_bert_recipe(config: ConfigDict) -> None:
    """Sets BERT's pre-training recipe: rows of 512 tokens; BERT's AdamW at 1e-4, with 10,000 steps of warm-up."""
    config.data.inputs_length = 512
    use_bert_optimizer(config)
    config.optimizer.update(learning_rate=1e-4, warmup_steps=10_000)
    use_long_run(config)


def use_bert_optimizer(config: ConfigDict) -> None:
    """Sets BERT's AdamW, with a linear decay to 0. The experiment sets the learning rate and the warm-up.

    Only norms and biases are exempt from weight decay. Embeddings decay, as in BERT's, RoBERTa's, ELECTRA's and BART's
    code.
    """
    config.optimizer.update(name="adamw", schedule="linear", final_learning_rate_fraction=0.0, b2=0.999, eps=1e-6)
    config.optimizer.update(weight_decay=0.01, no_decay=("norm", "bias"))


def use_llama_recipe(config: ConfigDict) -> None:
    """Sets Llama's recipe: AdamW at 3e-4, 2000 steps of warm-up, then a cosine decay to a tenth of the rate."""
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
