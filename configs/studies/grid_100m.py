"""Which objective is best at 100M parameters and 1B tokens: for classifiers, for grammar, and for continuing text?

    python -m train.ablate --study=configs/studies/grid_100m.py --out=studies/grid_100m

For an accelerator: docs/scaling.md has the costs, and the commands that make the corpus, eight files of C4, and its
tokenizer. `--config=configs/studies/grid_100m.py:ul2` is the config of one objective. Eight objectives train one stack
of twelve Llama blocks with the width and heads of BERT-base, with three seeds.

  subj_100, subj_500, mr_*, trec_*, proscons_*   accuracy of a logistic regression on frozen states, by labelled texts
  blimp           share of the pairs of BLiMP whose grammatical sentence is likelier
  continuation    of the objectives that continue text: bits per byte of the second half of a text

Why this is fair: all variants have one model, optimizer, learning rate, rows and number of raw tokens, and a measure
scores the same texts of every run. Where it is not fair: FLOPs on the same text differ (docs/scaling.md); ELECTRA
trains a generator too; and mlm, electra and masked_diffusion are encoders, whose BLiMP is by pseudo-likelihood. The
learning rate, GPT-3's for 125M parameters, is not tuned for each objective.
"""

from ml_collections import ConfigDict

from configs import architectures, clm
from configs.corpora import EXPERIMENTS
from configs.studies import common, english
from configs.studies.base import raw_tokens, study, variant

DECODERS = ("clm", "prefix_lm", "span_corruption", "ul2", "hybrid")
ENCODERS = ("mlm", "electra", "masked_diffusion")
_SHAPE = dict(num_layers=12, d_model=768, num_heads=12, num_kv_heads=12, head_dim=64, d_ff=2048)


def get_config(preset: str = "clm") -> ConfigDict:
    """Returns the experiment of an objective. Raises ValueError for any other preset, with those that exist."""
    if preset not in DECODERS + ENCODERS:
        raise ValueError(f"unknown preset {preset!r}: use {', '.join(map(repr, DECODERS + ENCODERS))}")
    config, shared = EXPERIMENTS[preset].get_config(), clm.get_config("base")
    config.update(precision=shared.precision, loss=shared.loss, optimizer=shared.optimizer, train=shared.train)
    config.optimizer.update(learning_rate=6e-4, warmup_steps=500)
    config.train.batch_size = 256
    config.model.update(shared.model)
    config.model.update(architectures.LLAMA["7b"] | _SHAPE)
    # The head is that of the English studies: ELECTRA's generator needs it where tables are tied.
    config.model.update(tie_embeddings=True, prediction_head="bert")
    config.model.architecture = "encoder_only" if preset in ENCODERS else "decoder_only"
    config.data.update(source="jsonl", path="c4/en/*.json.gz", heldout_fraction=0.01)
    config.data.update(documents="join", inputs_length=512, targets_length=512)
    config.data.num_sentinels = 128  # UL2's noise density of 0.5 with spans of 3
    return config


def get_study():
    """Returns the study."""
    return study(
        **common.described(__doc__),
        config="configs/studies/grid_100m.py:clm",
        baseline="clm",
        variants={name: variant(config=f"configs/studies/grid_100m.py:{name}") for name in DECODERS + ENCODERS},
        budget=raw_tokens(1e9),
        measures={**english.linear(), **english.blimp(), **common.continuation(only=DECODERS)},
        overrides={"data.tokenizer": "c4/c4.model"},
        seeds=3,
        varies=("model.architecture",),
    )
