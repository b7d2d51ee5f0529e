"""Masked language modeling (Devlin et al. 2019): 15% of the tokens selected, 80% of these masked, 10% random.

    python -m train.main --config=configs/mlm.py
    python -m train.main --config=configs/mlm.py:whole_word
    python -m train.main --config=configs/mlm.py:base,roberta

Sizes: tiny (default: small BERT blocks with rotary positions), base, large (BERT); modernbert_base, modernbert_large;
ettin_17m, ettin_32m, ettin_68m, ettin_150m, ettin_400m, ettin_1b; mmbert_small, mmbert_base; neobert_base. Those from
ModernBERT on have the rates of masks of their papers, by phases of the run (configs/recipes.py, with the deviations),
unless a variant is given. Variants:
  bert         default: single tokens, exactly 15% of each text
  roberta      single tokens, 15% on average; at base and large also RoBERTa's shape, optimizer and batch size
  whole_word   BERT's whole-word masking
  ngram        one to three words in shares of 6, 3 and 2 (ALBERT)
  span         one to ten words, geometrically distributed with p = 0.2 (SpanBERT's masking)
  decay        the rate falls from 30% to 15% in the course of the run, as in GPT-BERT (docs/objectives.md, Schedules)
  mlm_u        a rate for each text, uniform in [0, 1], and masks only (MLM-U, Kitouni et al. 2024, without its weights)
objectives/mlm.py lists the deviations from the papers.

Tiny on two CPU cores: 600 steps, held-out loss 1.667 (standard error 0.030), accuracy 0.56; the corpus's unigram
entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base, machines, recipes
from configs.sizes import DIAL

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
    "decay": _BERT | dict(mask_rate=0.3, final_mask_rate=0.15, schedule="linear", begin_step=0.0, end_step=1.0),
    "mlm_u": _BERT | dict(mask_rate=0.5, mask_token_rate=1.0, random_token_rate=0.0, mask_count="uniform"),
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = base.get_config()
    sizes = architectures.BERT | architectures.ENCODERS
    size, variant = base.split_preset(preset, sizes, VARIANTS)
    config.objective = ConfigDict({"name": "mlm", **VARIANTS[variant]})
    config.loss.z_loss = 0.0
    config.model.update(architectures.TINY_ENCODER)
    config.optimizer.update(name="adamw", learning_rate=2e-3)
    base.use_size(config, size, sizes)
    if size in architectures.ENCODERS:
        recipes.use_encoder_recipe(config, size)
        if preset != size:
            config.objective = ConfigDict({"name": "mlm", **VARIANTS[variant]})
        machines.use_machine(config, size, {})
    elif size not in DIAL:
        recipes.use_bert_recipe(config)
        config.train.update(batch_size=256, steps=1_000_000)
        if variant == "roberta":
            config.model.update(architectures.ROBERTA[size])
            # fairseq, examples/roberta/config/pretraining/base.yaml, for large too: the paper has 4e-4 and 30,000 there
            config.optimizer.update(learning_rate=5e-4, b2=0.98, clip_norm=0.0)
            config.train.update(batch_size=2048, steps=125_000)
        machines.use_machine(config, size, machines.BERT)
    return config
