"""BART (Lewis et al. 2020): text infilling and sentence permutation on BART's post-norm encoder-decoder.

    python -m train.main --config=configs/bart.py
    python -m train.main --config=configs/bart.py:document_rotation
    python -m train.main --config=configs/bart.py:large,text_infilling

Sizes: tiny (default: small BART blocks), base, large (published with 139M and 406M parameters). Beyond tiny the
learning rate falls linearly to 0, as published; gradients are clipped to a norm of 0.1, as in fairseq commands in
circulation; labels are not smoothed, because BART does this in fine-tuning only. Deviation: BART trained its last tenth
of updates without dropout; here model.dropout_rate is the same in all updates. Variants, by the paper's names:
  bart                   default: text infilling of sentences in random order, as BART itself was trained
  token_masking, token_deletion, text_infilling, sentence_permutation, document_rotation    each noise alone
A line break ends a sentence too, because the default corpus is source code. For English set
objective.sentence_ends="stops".

Tiny on two CPU cores: 600 steps, held-out loss 2.262 (standard error 0.030); the corpus's unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base, machines, recipes
from configs.sizes import DIAL

_NO_NOISE = dict(
    permute_sentences=0.0,
    sentence_ends="stops_and_newlines",
    mask_rate=0.0,
    mask_length="span_poisson",
    poisson_lambda=3.0,  # the paper's; commonly used fairseq commands have 3.5
    replace_length=1,
    mask_random=0.1,
    rotate=0.0,
)
VARIANTS = {
    "bart": _NO_NOISE | dict(mask_rate=0.3, permute_sentences=1.0),
    "token_masking": _NO_NOISE | dict(mask_rate=0.3, mask_length="token"),
    "token_deletion": _NO_NOISE | dict(mask_rate=0.3, mask_length="token", replace_length=0),
    "text_infilling": _NO_NOISE | dict(mask_rate=0.3),
    "sentence_permutation": _NO_NOISE | dict(permute_sentences=1.0),
    "document_rotation": _NO_NOISE | dict(rotate=1.0),
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = base.get_config()
    size, variant = base.split_preset(preset, architectures.BART, VARIANTS)
    config.objective = ConfigDict({"name": "bart", **VARIANTS[variant]})
    config.loss.z_loss = 0.0
    config.model.update(architectures.BART["base"] | base.TINY_SIZES | {"dropout_rate": 0.0})
    config.optimizer.update(name="adamw", learning_rate=2e-3)
    base.use_size(config, size, architectures.BART)
    if size not in DIAL:
        recipes.use_bert_recipe(config)
        config.data.update(targets_length=512, decoder_start_token="eos")
        config.optimizer.update(learning_rate=4e-4, b2=0.98, clip_norm=0.1)
        config.train.update(batch_size=8000, steps=500_000)
        machines.use_machine(config, size, machines.BART)
    return config
