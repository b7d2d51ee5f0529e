"""GLM (Du et al. 2022): blanks of a text are written one after another, in random order, by the decoder that reads it.

    python -m train.main --config=configs/glm.py
    python -m train.main --config=configs/glm.py:large,document

Sizes: tiny (default: small T5 blocks with rotary positions), base, large (published with 110M and 340M parameters;
learned positions). Variants:
  blank      default: spans of Poisson(3) tokens, 15% of the text
  sentence   half of the examples instead hide whole sentences, 15% of the text (GLM-Sent)
  document   half of the examples instead hide one span of 50 to 100% of the text (GLM-Doc)
A line break ends a sentence too, because the default corpus is source code.

Beyond tiny the optimizer is that of the authors' scripts (THUDM/GLM, config/ds_block_base.sh and ds_block_large.sh,
with their .json): Adam with b2 0.98; a warm-up, and a cosine to 5% of the rate, which ends at step 120,000 at base and
160,000 at large, 5% of which are the warm-up; then the rate stays, up to 150,000 and 200,000 steps. With another
train.steps set optimizer.cycles too, to "" for a cosine of all steps.

Deviations: all scored tokens weigh the same, so blanks are less than half of the loss: on the default corpus about two
fifths in sentence at tiny and nearly half at base, and a fifth in document. The authors' code draws one task for a
batch, so there each is half. Here each is with the loss_weight of a denoiser (docs/objectives.md, Mixtures). A row of
512 tokens holds text and targets, so that texts of the default variant have 439 tokens; GLM's 512 are text alone.
"""

from ml_collections import ConfigDict

from configs import architectures, base, machines, recipes
from configs.sizes import DIAL

_BLANK = dict(name="glm", blanks="spans", mask_rate=0.15, poisson_lambda=3.0, sentence_ends="stops_and_newlines")
_SENTENCES = _BLANK | dict(blanks="sentences")
_DOCUMENT = _BLANK | dict(blanks="document", mask_rate=0.5)

# The learning rate, the steps of the warm-up, the step at which the cosine ends, and the steps of the run.
_RECIPES = {"base": (4e-4, 6_000, 120_000, 150_000), "large": (2e-4, 8_000, 160_000, 200_000)}


def _half(other: dict) -> dict:
    fields = {"blank": _BLANK, "other": other}
    return base.mixture({name: base.denoiser(mode="", weight=1.0, **each) for name, each in fields.items()})


VARIANTS = {"blank": _BLANK, "sentence": _half(_SENTENCES), "document": _half(_DOCUMENT)}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = base.get_config()
    size, variant = base.split_preset(preset, architectures.GLM, VARIANTS)
    config.objective = ConfigDict(VARIANTS[variant])
    config.data.update(inputs_length=256, targets_length=256)
    config.model.update(num_layers=4, positions="rope")
    config.train.update(batch_size=8, steps=500)
    base.use_size(config, size, architectures.GLM)
    config.model.architecture = "decoder_only"
    if size not in DIAL:
        recipes.use_bert_recipe(config)
        config.loss.z_loss = 0.0
        rate, warmup, end, steps = _RECIPES[size]
        config.optimizer.update(learning_rate=rate, b2=0.98, weight_decay=0.1, warmup_steps=warmup)
        config.optimizer.update(schedule="cosine", final_learning_rate_fraction=0.05, cycles=f"0-{end}")
        config.train.update(batch_size=1024, steps=steps)
        machines.use_machine(config, size, machines.GLM)
    return config
