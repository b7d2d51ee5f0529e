"""UL2's mixture of seven denoisers (Tay et al. 2022, table 1) on a T5 v1.1 encoder-decoder.

    python -m train.main --config=configs/ul2.py
    python -m train.main --config=configs/ul2.py --config.model.architecture=decoder_only
    python -m train.main --config=configs/ul2.py:s20_r40_x40
    python -m train.main --config=configs/ul2.py:base --config.data.source=text --config.data.path=corpus/

Sizes: tiny (default), small, base, large, xl, xxl (T5 v1.1's sizes), 20b (the paper's model: 32 encoder layers and 32
decoder layers). The first three variants differ in the weights of the denoisers:
  equal        default: the same weight for each, as in the code of the paper's appendix
  s20_r40_x40  20% S, 40% R, 40% X, divided evenly among the R and among the X denoisers: a suggestion of the paper that
               reimplementations use
  s34_r33_x33  34% S, 33% R, 33% X, divided in the same way: used by FAT5 and UL2_5
  packed       the weights of `equal`, with four examples in each row and the same number of examples in a batch. Tokens
               fill 99% of the positions of both stacks; with one example per row, as in the paper, 96% of the encoder's
               and 55% of the decoder's. With other weights train.main reports the data.targets_length that fits
               data.packing="planned".
  released     the weights of `equal`, with the mode tokens of the released checkpoints

What the paper does not specify, and the field that decides it:
  mixing weights         objective.denoisers.*.weight: see the variants
  unit of the weights    objective.mix_by: "example", as in the appendix code, or "token"
  where S splits a text  objective.denoisers.s.target_fraction, .split: 0.25 and "uniform", as in table 1. The appendix
                         code splits uniformly over the whole length: 0.5.
  a sentinel in S        objective.denoisers.s.sentinel: False, as in the appendix code. Levanter's port and the prompts
                         of the released checkpoints have <extra_id_0> at the split.
  the random roll        objective.denoisers.*.random_roll: False, as in T5. Then x3 (15% noise in spans of 64) has one
                         span at these lengths, always at the end of the text. Levanter's port has True. In a study of
                         span corruption on facts (docs/gym.md), the roll decides whether facts are known in the order
                         in which they were not read: .85 of them with it, none without.
  the span lengths       objective.denoisers.*.span_length_distribution: "composition", as in the appendix code, which
                         calls T5's. The paper's text says that they are normal ("normal"); reimplementations of UL2R
                         have "uniform". At 512 inputs x1 then needs data.num_sentinels=149, and with "normal" 143.
  names of mode tokens   [R], [S], [X], as in the paper; in released checkpoints, and the variant `released`, [NLU],
                         [S2S], [NLG]. They are data.mode_tokens, and each denoiser names its own
                         (objective.denoisers.*.mode; '' for none).

Any objectives that share an architecture can be mixed in such a table. configs/ul2r.py has weights that change during
the run.

Tiny on two CPU cores: 2 minutes, 600 steps, held-out loss 2.339 (standard error 0.030; r1 2.30, r2 2.28, s 2.24,
x1 2.54, x2 2.40, x3 2.14, x4 2.16); the corpus's unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base, machines, recipes
from configs.base import denoiser
from configs.sizes import DIAL

SIZES = {**architectures.T5_V1_1, "20b": architectures.UL2["20b"]}
VARIANTS = {  # the weight of each R denoiser, of S, and of each X denoiser
    "equal": (1.0, 1.0, 1.0),
    "s20_r40_x40": (0.2, 0.2, 0.1),
    "s34_r33_x33": (0.165, 0.34, 0.0825),
    "packed": (1.0, 1.0, 1.0),
    "released": (1.0, 1.0, 1.0),
}
MODE_TOKENS = {"released": ("[NLU]", "[S2S]", "[NLG]")}  # of R, S and X; other variants: those of configs/base.py


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    config = base.get_config()
    size, variant = base.split_preset(preset, SIZES, VARIANTS)
    r, s, x = VARIANTS[variant]
    r_mode, s_mode, x_mode = config.data.mode_tokens = MODE_TOKENS.get(variant, config.data.mode_tokens)
    spans = dict(name="span_corruption", random_roll=False, span_length_distribution="composition")
    denoisers = {
        "r1": denoiser(mode=r_mode, weight=r, **spans, noise_density=0.15, mean_noise_span_length=3.0),
        "r2": denoiser(mode=r_mode, weight=r, **spans, noise_density=0.15, mean_noise_span_length=8.0),
        "s": denoiser(mode=s_mode, weight=s, name="prefix_lm", target_fraction=0.25, split="uniform", sentinel=False),
        "x1": denoiser(mode=x_mode, weight=x, **spans, noise_density=0.5, mean_noise_span_length=3.0),
        "x2": denoiser(mode=x_mode, weight=x, **spans, noise_density=0.5, mean_noise_span_length=8.0),
        "x3": denoiser(mode=x_mode, weight=x, **spans, noise_density=0.15, mean_noise_span_length=64.0),
        "x4": denoiser(mode=x_mode, weight=x, **spans, noise_density=0.5, mean_noise_span_length=64.0),
    }
    config.objective = ConfigDict(base.mixture(denoisers))
    base.use_size(config, size, SIZES)
    if size not in DIAL:
        recipes.use_t5_recipe(config)
        config.data.num_sentinels = 128  # noise_density=0.5 with spans of 3 needs 128 at 512 inputs; T5 has 100
        config.train.update(batch_size=128, steps=500_000)
    if size == "20b":
        config.train.update(batch_size=1024, steps=2_000_000)
    machines.use_machine(config, size, {**machines.T5, **machines.UL2})
    if variant == "packed":
        config.data.update(packing="planned", examples_per_row=4)
        config.data.inputs_length *= 4
        # The seven denoisers have 0.57 targets per input.
        config.data.targets_length = config.data.inputs_length * 9 // 16
        config.train.batch_size //= 4
    return config
