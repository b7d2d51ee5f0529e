"""Masked language modelling (Devlin et al. 2019): 15% selected, of which 80% masked, 10% random, 10% kept.

    python -m train.main --config=configs/mlm.py
    python -m train.main --config=configs/mlm.py:whole_word
    python -m train.main --config=configs/mlm.py:base,roberta

Sizes: tiny (default: BERT's pieces, but rotary positions: with learned ones so short a run learns the frequencies of
bytes and no more), base, large (BERT). Variants:
  bert         default: single tokens, 15% to the token
  roberta      15% on average; at base and large also RoBERTa's optimizer settings and batch
  whole_word   BERT's whole-word masking
  ngram        one to three words, in shares of 6, 3 and 2: ALBERT
  span         one to ten words, geometric with p = 0.2: SpanBERT's masking
What differs from each is in objectives/mlm.py.

Tiny on two CPU cores: 600 steps, held-out loss 1.545, accuracy 0.59; the corpus' unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base

_BERT = dict(
    mask_rate=0.15,
    mask_token_rate=0.8,
    random_token_rate=0.1,
    mask_count="rounded",
    mask_unit="token",
    ngram_weights=(1.0,),
)
VARIANTS = {
    "bert": _BERT,
    "roberta": _BERT | dict(mask_count="probabilistic"),
    "whole_word": _BERT | dict(mask_unit="word"),
    "ngram": _BERT | dict(mask_unit="word", ngram_weights=(6.0, 3.0, 2.0)),
    "span": _BERT | dict(mask_unit="word", ngram_weights=tuple(0.2 * 0.8**n for n in range(10))),
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    config = base.get_config()
    size, variant = base.split_preset(preset, architectures.BERT, VARIANTS)
    config.objective = ConfigDict({"name": "mlm", **VARIANTS[variant]})
    config.loss.z_loss = 0.0
    config.model.update(architectures.TINY_ENCODER)
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-3
    if base.is_paper_scale(config, size, architectures.BERT):
        config.data.inputs_length = 512
        config.optimizer.schedule = "linear"
        config.optimizer.learning_rate = 1e-4
        config.optimizer.warmup_steps = 10_000
        config.optimizer.final_learning_rate_fraction = 0.0
        config.optimizer.b2 = 0.999
        config.optimizer.eps = 1e-6
        config.optimizer.weight_decay = 0.01
        config.train.batch_size = 256
        config.train.steps = 1_000_000
        base.watch_long_run(config)
        if variant == "roberta":  # fairseq, examples/roberta/config/pretraining/base.yaml
            config.optimizer.learning_rate = 5e-4
            config.optimizer.b2 = 0.98
            config.optimizer.clip_norm = 0.0
            config.train.batch_size = 2048
            config.train.steps = 125_000
    return config
