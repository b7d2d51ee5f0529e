"""BART (Lewis et al. 2020): text infilling and sentence permutation on BART's post-norm encoder-decoder.

    python -m train.main --config=configs/bart.py
    python -m train.main --config=configs/bart.py:document_rotation
    python -m train.main --config=configs/bart.py:large,text_infilling

Sizes: tiny (default: BART's pieces), base, large (139M and 406M parameters). Variants, by the paper's names for them:
  bart                   default: text infilling of sentences in random order, as BART itself was trained
  token_masking, token_deletion, text_infilling, sentence_permutation, document_rotation    each noise alone
Beyond tiny the learning rate falls linearly to 0, as published. A sentence here may also end at a line's end, for the
sake of source text; English needs only sentence_ends="stops".

Tiny on two CPU cores: 600 steps, held-out loss 1.915; the corpus' unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base

_BART = architectures.BERT["base"] | dict(
    architecture="encoder_decoder", norm_epsilon=1e-5, prediction_head="linear", dropout_rate=0.1
)
SIZES = {
    "base": _BART | dict(num_layers=6),
    "large": _BART | dict(num_layers=12, d_model=1024, num_heads=16, num_kv_heads=16, head_dim=64, d_ff=4096),
}

_NOTHING = dict(
    permute_sentences=0.0,
    sentence_ends="stops_and_newlines",
    mask_rate=0.0,
    mask_length="span_poisson",
    poisson_lambda=3.0,  # the paper's; commands in circulation have 3.5
    replace_length=1,
    mask_random=0.1,
    rotate=0.0,
)
VARIANTS = {
    "bart": _NOTHING | dict(mask_rate=0.3, permute_sentences=1.0),
    "token_masking": _NOTHING | dict(mask_rate=0.3, mask_length="token"),
    "token_deletion": _NOTHING | dict(mask_rate=0.3, mask_length="token", replace_length=0),
    "text_infilling": _NOTHING | dict(mask_rate=0.3),
    "sentence_permutation": _NOTHING | dict(permute_sentences=1.0),
    "document_rotation": _NOTHING | dict(rotate=1.0),
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    config = base.get_config()
    size, variant = base.split_preset(preset, SIZES, VARIANTS)
    config.objective = ConfigDict({"name": "bart", **VARIANTS[variant]})
    config.loss.z_loss = 0.0
    config.model.update(_BART | base.TINY_SIZES | {"dropout_rate": 0.0})
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 2e-3
    if base.is_paper_scale(config, size, SIZES):
        config.data.inputs_length = 512
        config.data.targets_length = 512
        config.loss.label_smoothing = 0.1
        config.optimizer.schedule = "linear"
        config.optimizer.learning_rate = 4e-4
        config.optimizer.warmup_steps = 10_000
        config.optimizer.final_learning_rate_fraction = 0.0
        config.optimizer.b2 = 0.98
        config.optimizer.eps = 1e-6
        config.optimizer.weight_decay = 0.01
        config.train.batch_size = 8000
        config.train.steps = 500_000
        base.watch_long_run(config)
    return config
