"""UL2R (Tay et al. 2022, "Transcending scaling laws with 0.1% extra compute"): a causal model learns to denoise.

    python -m train.main --config=configs/ul2r.py --config.train.init_from=runs/clm
    python -m train.main --config=configs/ul2r.py:clm_then_ul2r
    python -m train.main --config=configs/ul2r.py:7b --config.train.init_from=runs/clm-7b

U-PaLM's mixture on a decoder whose inputs see each other: 1/2 prefix LM (S), 1/4 short spans (R), 1/8 long spans and
1/8 dense spans (X). The weights, densities and random roll are those of Levanter's port, because the paper's own were
not available.

Sizes: as in configs/clm.py. UL2R continues a run of configs/clm.py (train.init_from), whose vocabulary it takes: a run
with rows of 2,048 tokens needs data.num_sentinels=512. Without train.init_from the model is trained from scratch.
Variants:
  ul2r           default: the mixture alone
  clm_then_ul2r  both in one run: CLM for the first half; then, over a tenth of the run, the weight of CLM falls
                 linearly to 0 and the weights of the mixture rise. U-PaLM switches at once: PaLM, then 20,000 steps.

Levanter's port differs from this mixture in two ways: it cuts each text at random before the corruption, and it puts a
sentinel between S's inputs and targets (objective.denoisers.s.sentinel=True does the same here). The warm-up, the
weight decay of 0 and the cosine to a tenth of the rate are choices of this codebase.

Tiny on two CPU cores, from scratch: 500 steps, held-out loss 2.579 (standard error 0.039; r 3.05, s 2.37, x1 2.44,
x2 3.14); the corpus's unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import base, clm, machines
from configs.base import denoiser
from configs.sizes import DIAL

_SPANS = dict(name="span_corruption", random_roll=True, span_length_distribution="composition")
_UL2R = {
    "r": denoiser(mode="[R]", weight=0.25, **_SPANS, noise_density=0.15, mean_noise_span_length=3.0),
    "x1": denoiser(mode="[X]", weight=0.125, **_SPANS, noise_density=0.15, mean_noise_span_length=32.0),
    "x2": denoiser(mode="[X]", weight=0.125, **_SPANS, noise_density=0.5, mean_noise_span_length=3.0),
    "s": denoiser(mode="[S]", weight=0.5, name="prefix_lm", target_fraction=0.5, split="uniform", sentinel=False),
}
_CLM_THEN_UL2R = {name: row | dict(weight=0.0, final_weight=row["weight"]) for name, row in _UL2R.items()}
_CLM_THEN_UL2R["clm"] = denoiser(mode="", weight=1.0, final_weight=0.0, name="clm")
VARIANTS = {"ul2r": _UL2R, "clm_then_ul2r": _CLM_THEN_UL2R}


def get_config(preset: str = "tiny") -> ConfigDict:
    """Returns the experiment at a preset."""
    size, variant = base.split_preset(preset, clm.SIZES, VARIANTS)
    config = clm.get_config(size)
    config.data.documents = "join"
    if size not in DIAL:
        config.data.num_sentinels = config.data.inputs_length // 4  # enough for x2, on an encoder-decoder too
        config.optimizer.update(learning_rate=1e-4, warmup_steps=500, weight_decay=0.0)
        config.train.update(batch_size=32, steps=20_000)
        machines.use_machine(config, size, clm.FITS)
    config.objective = ConfigDict(base.mixture(VARIANTS[variant]))
    if variant == "clm_then_ul2r":
        config.objective.update(schedule="linear", begin_step=0.5)
        config.objective.end_step = 0.6
    return config
