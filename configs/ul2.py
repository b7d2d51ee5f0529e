"""UL2's mixture of seven denoisers (Tay et al. 2022, table 1) on a T5 v1.1 encoder-decoder.

    python -m train.main --config=configs/ul2.py
    python -m train.main --config=configs/ul2.py --config.model.architecture=decoder_only
    python -m train.main --config=configs/ul2.py:s20_r40_x40
    python -m train.main --config=configs/ul2.py:base --config.data.source=text --config.data.path=corpus/

Sizes: tiny (default), base, large, xl, xxl (T5 v1.1's sizes), 20b (the paper's model: 32 + 32 layers). Variants, but
for the last one in their weights alone:
  equal        default: each denoiser as often as any other, as in the paper's appendix code
  s20_r40_x40  20% S, 40% R, 40% X, evenly within each: ports, as a suggestion of the paper's
  s34_r33_x33  a third each, evenly within R and X: FAT5, UL2_5
  packed       equal, four examples in each row and as many in a batch: tokens fill 99% of the encoder's positions and
               98% of the decoder's, where they fill 96% and 55% of rows of one example, as the paper has them. At
               other weights train.main says which data.targets_length goes with data.packing="planned".

What the paper leaves open, and the field that decides it:
  mixing weights        objective.denoisers.*.weight: the variants above
  by example or token   objective.mix_by
  S's split             objective.denoisers.s.target_fraction, .split: 0.25 and uniform, as table 1 has it. The appendix
                        code splits uniformly over the whole length: 0.5.
  a sentinel for S      objective.denoisers.s.sentinel: none, as in the appendix code. Levanter's port and the prompts
                        of the released checkpoints put <extra_id_0> there.
  random roll           objective.denoisers.*.random_roll: off, as in T5. Then r = .15 with spans of 64 tokens has one
                        span at these lengths, and it is always the end of the text. U-PaLM's port turns it on.
  mode tokens' names    data.mode_tokens: [R] [S] [X] as in the paper; released checkpoints: [NLU] [S2S] [NLG].

A mixture of one's own is a table like this one, of any objectives that share an architecture; weights may also change
in the course of the run, as in configs/ul2r.py.

Tiny on two CPU cores: 2 minutes, 600 steps, held-out loss 2.354 (r1 2.46, r2 2.16, s 2.34, x1 2.54, x2 2.41, x3 2.12,
x4 2.16); the corpus' unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base

SIZES = {**architectures.T5_V1_1, "20b": architectures.UL2["20b"]}
VARIANTS = {  # weights: of each R, of S, of each X
    "equal": (1.0, 1.0, 1.0),
    "s20_r40_x40": (0.2, 0.2, 0.1),
    "s34_r33_x33": (0.165, 0.34, 0.0825),
    "packed": (1.0, 1.0, 1.0),
}


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    config = base.get_config()
    size, variant = base.split_preset(preset, SIZES, VARIANTS)
    r, s, x = VARIANTS[variant]
    config.objective = ConfigDict(
        {
            "name": "mixture",
            "mix_by": "example",
            "schedule": "constant",
            "denoisers": {
                "r1": _span_corruption("[R]", r, noise_density=0.15, mean_noise_span_length=3.0),
                "r2": _span_corruption("[R]", r, noise_density=0.15, mean_noise_span_length=8.0),
                "s": {
                    "name": "prefix_lm",
                    "mode": "[S]",
                    "weight": s,
                    "target_fraction": 0.25,
                    "split": "uniform",
                    "sentinel": False,
                },
                "x1": _span_corruption("[X]", x, noise_density=0.5, mean_noise_span_length=3.0),
                "x2": _span_corruption("[X]", x, noise_density=0.5, mean_noise_span_length=8.0),
                "x3": _span_corruption("[X]", x, noise_density=0.15, mean_noise_span_length=64.0),
                "x4": _span_corruption("[X]", x, noise_density=0.5, mean_noise_span_length=64.0),
            },
        }
    )
    if base.is_paper_scale(config, size, SIZES):
        base.use_t5_recipe(config)
        config.data.num_sentinels = 128  # r = .5 with spans of 3 needs 128 at 512 inputs; T5's 100 are too few
        config.train.batch_size = 1024 if size == "20b" else 128
        config.train.steps = 2_000_000 if size == "20b" else 500_000
        if size == "base":
            config.train.grad_accum_steps = 8  # 16 rows at a time: one chip of 16 GiB holds them; up to 16 devices
        if size == "20b":
            config.model.remat = "full"
            config.mesh.data, config.mesh.fsdp = 1, -1  # the state is 73 GiB, and no device should hold all of it
    if variant == "packed":
        config.data.packing = "planned"
        config.data.examples_per_row = 4
        config.data.inputs_length *= 4
        config.data.targets_length = config.data.inputs_length * 9 // 16  # seven denoisers have .57 targets an input
        config.train.batch_size //= 4
    return config


def _span_corruption(mode: str, weight: float, *, noise_density: float, mean_noise_span_length: float) -> dict:
    return {
        "name": "span_corruption",
        "mode": mode,
        "weight": weight,
        "noise_density": noise_density,
        "mean_noise_span_length": mean_noise_span_length,
        "random_roll": False,
    }
