"""SimCSE without labels (Gao et al. 2021): a text read twice, under two draws of dropout, is to be nearest to itself.

    python -m train.main --config=configs/simcse.py
    python -m train.main --config=configs/simcse.py:base --config.train.init_from=WORKDIR

Sizes: tiny (default, from nothing), base, large (BERT). SimCSE starts from a trained BERT: give train.init_from the
workdir of a run of configs/mlm.py or nsp.py (then with --config.model.num_token_types=2). Its texts are sentences of at
most 32 tokens, as data.document_per="line" may give; of a longer document every 30 tokens are a text here. Variants:
  simcse     default: the contrast alone, no token is masked
  with_mlm   beside masked language modelling, which counts a tenth

A held-out batch holds neighbours of one document, negatives harder to tell apart than training's.

Tiny on two CPU cores: 300 steps, held-out loss 0.691 nats a text, its own second reading the nearest of 32 for 0.77.
"""

from ml_collections import ConfigDict

from configs import architectures, base, mlm

_SIMCSE = mlm.VARIANTS["bert"] | dict(name="simcse", temperature=0.05, mlm_weight=0.0)
VARIANTS = {"simcse": _SIMCSE, "with_mlm": _SIMCSE | dict(mlm_weight=0.1)}


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    size, variant = base.split_preset(preset, architectures.BERT, VARIANTS)
    config = mlm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    config.data.documents = "split"
    config.model.dropout_rate = 0.1
    if size == "tiny":
        config.data.inputs_length = 64
        config.train.batch_size = 32
        config.train.steps = 300
    else:
        config.data.inputs_length = 32
        config.optimizer.schedule = "linear"
        config.optimizer.learning_rate = 3e-5 if size == "base" else 1e-5
        config.optimizer.warmup_steps = 0
        config.optimizer.weight_decay = 0.0
        config.train.batch_size = 64
        config.train.steps = 15_625  # one epoch of its million sentences
        config.train.eval_every = config.train.checkpoint_every = 250
    return config
