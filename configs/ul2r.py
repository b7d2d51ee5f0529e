"""UL2R (Tay et al. 2022, "Transcending scaling laws with 0.1% extra compute"): a causal model learns to fill in.

    python -m train.main --config=configs/ul2r.py --config.train.init_from=runs/clm
    python -m train.main --config=configs/ul2r.py:clm_then_ul2r
    python -m train.main --config=configs/ul2r.py:7b --config.train.init_from=runs/clm-7b

U-PaLM's mixture: half prefix LM (S), a quarter short spans (R), an eighth each long spans and dense ones (X), on a
decoder whose inputs see each other. Weights, densities and the random roll are those of Levanter's port; the paper's
own were not at hand. Sizes: tiny (default) and those of configs/clm.py, whose runs it goes on from
(`train.init_from`; without it, it begins from scratch). Such a run needs the tokenizer and data.num_sentinels of this
one. Variants:
  ul2r           default: the mixture alone
  clm_then_ul2r  both in one run: CLM for the first half, then its share falls in a straight line over a tenth of the
                 run, and the mixture's rises. U-PaLM's 20,000 steps after PaLM are a switch at once.

What the port does that this does not: it cuts each text at random before it corrupts it, and puts a sentinel between
S's inputs and targets (here objective.denoisers.s.sentinel=True does).

Tiny on two CPU cores, from nothing: 500 steps, held-out loss 2.539 (r 3.05, s 2.31, x1 2.50, x2 3.19); the corpus'
unigram entropy is 3.236.
"""

from ml_collections import ConfigDict

from configs import architectures, base

SIZES = {"base": architectures.GPT2["small"], **architectures.GPT2, **architectures.LLAMA, **architectures.LLAMA2}
VARIANTS = {"ul2r": "constant", "clm_then_ul2r": "linear"}


def get_config(preset: str = "tiny") -> ConfigDict:
    """The experiment at one of its presets."""
    config = base.get_config()
    size, variant = base.split_preset(preset, SIZES, VARIANTS)
    config.loss.z_loss = 0.0
    config.data.inputs_length = 256
    config.train.batch_size = 8
    config.train.steps = 500
    config.model.update(architectures.LLAMA["7b"] | base.TINY_SIZES | {"num_layers": 4})
    if base.is_paper_scale(config, size, SIZES):
        config.data.inputs_length = 1024 if size in {"base", *architectures.GPT2} else 2048
        config.data.num_sentinels = config.data.inputs_length // 4  # r = .5 with spans of 3, on an encoder-decoder too
        config.optimizer.name = "adamw"
        config.optimizer.learning_rate = 1e-4
        config.optimizer.warmup_steps = 500
        config.optimizer.b2 = 0.95
        config.train.batch_size = 32
        config.train.steps = 20_000
        base.watch_long_run(config)
    config.data.targets_length = config.data.inputs_length
    denoisers = {
        "r": _span_corruption("[R]", 0.25, noise_density=0.15, mean_noise_span_length=3.0),
        "x1": _span_corruption("[X]", 0.125, noise_density=0.15, mean_noise_span_length=32.0),
        "x2": _span_corruption("[X]", 0.125, noise_density=0.5, mean_noise_span_length=3.0),
        "s": {
            "name": "prefix_lm",
            "mode": "[S]",
            "weight": 0.5,
            "target_fraction": 0.5,
            "split": "uniform",
            "sentinel": False,
        },
    }
    config.objective = ConfigDict(
        {"name": "mixture", "mix_by": "example", "schedule": VARIANTS[variant], "denoisers": denoisers}
    )
    if variant == "clm_then_ul2r":
        config.objective.begin_step = config.train.steps // 2
        config.objective.end_step = config.train.steps * 6 // 10
        for row in denoisers:
            config.objective.denoisers[row].update({"weight": 0.0, "final_weight": denoisers[row]["weight"]})
        config.objective.denoisers.clm = {"name": "clm", "mode": "", "weight": 1.0, "final_weight": 0.0}
    return config


def _span_corruption(mode: str, weight: float, *, noise_density: float, mean_noise_span_length: float) -> dict:
    return {
        "name": "span_corruption",
        "mode": mode,
        "weight": weight,
        "noise_density": noise_density,
        "mean_noise_span_length": mean_noise_span_length,
        "random_roll": True,
    }
