"""Unsupervised SimCSE (Gao et al. 2021): contrastive sentence embeddings, with dropout as the only augmentation.

    python -m train.main --config=configs/simcse.py
    python -m train.main --config=configs/simcse.py:base --config.train.init_from=WORKDIR

Each text is encoded twice under different dropout. The first encoding of a text is trained to be more similar to the
second encoding of the same text than to those of all other texts in the batch.

Sizes: tiny (default, from scratch), base, large (BERT). SimCSE starts from a trained BERT: set train.init_from to the
workdir of a run of configs/mlm.py, or of configs/nsp.py with --config.model.num_token_types=2. SimCSE's texts are
sentences of at most 32 tokens: with data.document_per="line" each line of a corpus is such a text. At base and large a
longer document is split into texts of 30 tokens. Variants:
  simcse     default: the contrastive loss alone; no token is masked
  with_mlm   plus masked language modeling, with weight 0.1

Tiny on two CPU cores: 300 steps, held-out loss 0.279 nats per text; accuracy 0.93: for this share of the texts the most
similar of 32 second encodings is that of the same text.
"""

from ml_collections import ConfigDict

from configs import architectures, base, mlm
from configs.sizes import DIAL

_SIMCSE = mlm.VARIANTS["bert"] | dict(name="simcse", temperature=0.05, mlm_weight=0.0)
VARIANTS = {"simcse": _SIMCSE, "with_mlm": _SIMCSE | dict(mlm_weight=0.1)}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, architectures.BERT, VARIANTS)
    config = mlm.get_config(size)
    config.objective = ConfigDict(VARIANTS[variant])
    config.data.documents = "split"
    config.model.dropout_rate = 0.1
    if size in DIAL:
        config.data.inputs_length = 64
        config.train.update(batch_size=32, steps=300)
    else:
        config.data.inputs_length = 32
        config.optimizer.update(learning_rate=3e-5 if size == "base" else 1e-5, warmup_steps=0, weight_decay=0.0)
        config.optimizer.eps = 1e-8  # the default of Hugging Face's Trainer
        config.train.batch_size = 64
        config.train.steps = 15_625  # one epoch of SimCSE's million sentences
        config.train.eval_every = config.train.checkpoint_every = 250
    return config
