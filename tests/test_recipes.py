"""Facts of the published training recipes that the configs' presets beyond tiny must have."""

import collections
import importlib
import re

import jax
import pytest

from configs import ul2
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from experiment.optimizer import decay_mask
from experiment.schedules import make_schedule
from models.parameters import leaf_name
from tests.table import presets_of


def config_of(name, preset):
    return importlib.import_module(f"configs.{name}").get_config(preset)


def published(name):
    """The sizes of a config, without tiny; with a variant where the variant changes the recipe."""
    sizes = {"small", "base", "medium", "large", "xl", "xxl", "20b", "7b", "13b", "70b"}
    return [preset for preset in presets_of(name) if preset in sizes]


T5 = ["span_corruption", "iid_denoising", "prefix_lm", "deshuffling", "ul2"]
BERT = ["mlm", "nsp", "sop", "unilm", "electra", "bart"]


@pytest.mark.parametrize("name", T5)
def test_t5s_recipe_does_not_clip_the_global_norm(name):
    for preset in published(name):
        optimizer = config_of(name, preset).optimizer
        assert (optimizer.name, optimizer.clip_norm, optimizer.weight_decay) == ("adafactor", 0.0, 0.0), preset


@pytest.mark.parametrize("name", [*BERT, "classification"])
def test_embeddings_decay_in_berts_recipe_and_norms_and_biases_do_not(name):
    config = config_of(name, "base")
    assert config.optimizer.weight_decay == 0.01
    config.model.update({"d_model": 24, "d_ff": 24, "num_heads": 12, "num_kv_heads": 12, "head_dim": 2})
    shapes = make_experiment(config.to_dict()).params_shapes
    mask = jax.tree_util.tree_leaves_with_path(decay_mask(shapes, config.optimizer.no_decay))
    decays = {leaf_name(path): decay for path, decay in mask}
    exempt = {path.rpartition("/")[2] for path, decay in decays.items() if not decay}
    assert exempt == {"bias", "scale"}
    assert {path.rpartition("/")[2] for path, decay in decays.items() if decay} == {"kernel", "embedding"}
    tables = {path for path in decays if "embedder" in path and path.endswith("/embedding")}
    stacks = ("encoder_", "decoder_") if name == "bart" else ("",)
    positions = {f"{stack}position_embedder" for stack in stacks}
    assert {path.split("/")[1] for path in tables} >= {"token_embedder"} | positions
    assert all(decays[path] for path in tables)


@pytest.mark.parametrize("preset", ["base", "large"])
def test_bart_pretrains_without_label_smoothing(preset):
    config = config_of("bart", preset)
    assert (config.loss.label_smoothing, config.optimizer.clip_norm) == (0.0, 0.1)
    assert config.model.dropout_rate == 0.1


ADAM = dict(b1=0.9, b2=0.999, eps=1e-6, weight_decay=0.01, schedule="linear", final_learning_rate_fraction=0.0)
NUMBERS = {
    ("span_corruption", "base"): {
        "optimizer": dict(learning_rate=0.01, warmup_steps=10_000, schedule="rsqrt"),
        "loss": dict(z_loss=1e-4),
        "model": dict(relative_num_buckets=32, relative_max_distance=128, norm_epsilon=1e-6),
    },
    ("mlm", "base"): {
        "optimizer": dict(learning_rate=1e-4, warmup_steps=10_000, **ADAM),
        "loss": dict(z_loss=0.0),
        "model": dict(norm_epsilon=1e-12, initializer_range=0.02),
    },
    ("electra", "small"): {
        "optimizer": dict(learning_rate=5e-4, warmup_steps=10_000, **ADAM),
        "objective": dict(mask_rate=0.15, generator_weight=1.0, discriminator_weight=50.0, temperature=1.0),
    },
    ("bart", "base"): {"model": dict(norm_epsilon=1e-5)},
    ("simcse", "base"): {"objective": dict(temperature=0.05)},
    ("clm", "7b"): {
        "optimizer": dict(b1=0.9, b2=0.95, weight_decay=0.1, warmup_steps=2000, final_learning_rate_fraction=0.1),
    },
    ("multi_token_prediction", "base,independent"): {"objective": dict(num_future_tokens=4, loss_weight=1.0)},
    ("multi_token_prediction", "base,sequential"): {"objective": dict(num_future_tokens=2, loss_weight=0.3)},
}


@pytest.mark.parametrize(("name", "preset"), NUMBERS)
def test_numbers_of_the_papers(name, preset):
    config = config_of(name, preset)
    for section, fields in NUMBERS[name, preset].items():
        assert {field: config[section][field] for field in fields} == fields


def test_robertas_recipe_does_not_clip():
    assert config_of("mlm", "base,roberta").optimizer.clip_norm == 0.0
    assert (config_of("mlm", "base,roberta").model.mlp, config_of("mlm", "base").model.mlp) == ("exact_gelu", "gelu")
    assert config_of("mlm", "base").optimizer.clip_norm == 1.0


def test_gpt2s_presets_have_gpt2s_initializer_and_llamas_do_not():
    names = {preset: config_of("clm", preset).model.initializer for preset in published("clm")}
    assert names == dict.fromkeys(["base", "small", "medium", "large", "xl"], "gpt2") | dict.fromkeys(
        ["7b", "13b", "70b"], "normal"
    )


def test_simcses_augmentation_is_drawn_for_every_element():
    for preset in ("tiny", "base", "large"):
        model = config_of("simcse", preset).model
        assert (model.dropout_rate, model.dropout_broadcast_positions) == (0.1, False)


MASK_RATES = {
    "modernbert_base": [0.3] * 5,
    "ettin_17m": [0.3, 0.3, 0.3, 0.3, 0.15],
    "mmbert_base": [0.3, 0.3, 0.15, 0.15, 0.05],
    "neobert_base": [0.2] * 5,
}


@pytest.mark.parametrize("preset", MASK_RATES)
def test_the_mask_rates_of_todays_encoders_at_five_shares_of_the_run(preset):
    experiment = make_experiment(config_of("mlm", preset).to_dict())
    [task] = experiment.tasks
    steps = [int(share * experiment.train.steps) for share in (0, 0.76, 0.77, 0.96, 0.98)]
    assert [task.at(step).objective.mask_rate for step in steps] == MASK_RATES[preset]


def test_ettins_smallest_encoder():
    config = config_of("mlm", "ettin_17m")
    optimizer = config.optimizer
    assert (optimizer.learning_rate, optimizer.b1, optimizer.b2, optimizer.schedule) == (3e-3, 0.9, 0.98, "wsd")
    assert optimizer.weight_decay * optimizer.learning_rate == pytest.approx(3e-4)
    assert (optimizer.name, optimizer.clip_norm) == ("stable_adamw", 0.0)
    tokens = config.train.batch_size * config.data.inputs_length
    assert (tokens, round(config.train.steps * tokens / 1e12, 1)) == (4608 * 1024, 2.0)


def test_a_variant_replaces_the_masks_of_todays_encoders():
    config = config_of("mlm", "ettin_17m,span")
    assert config.objective.mask_rate == 0.15 and config.objective.mask_unit == "word"
    assert "schedule" not in config.objective and config.model.global_every == 3


GLM_SCRIPTS = {"base": (4e-4, 6_000, 120_000, 150_000), "large": (2e-4, 8_000, 160_000, 200_000)}


@pytest.mark.parametrize("preset", GLM_SCRIPTS)
def test_glms_optimizer_is_that_of_the_authors_scripts(preset):
    """The rate is linear over the warm-up, then a cosine to a twentieth up to step `end`, then constant."""
    peak, warmup, end, steps = GLM_SCRIPTS[preset]
    experiment = make_experiment(config_of("glm", preset).to_dict())
    optimizer = experiment.optimizer
    assert (optimizer.b1, optimizer.b2, optimizer.eps, optimizer.weight_decay) == (0.9, 0.98, 1e-6, 0.1)
    assert experiment.train.steps == steps
    rate = make_schedule(optimizer, steps)
    at = [warmup // 2, warmup, (warmup + end) // 2, end, steps - 1]
    expected = [peak / 2, peak, 0.525 * peak, 0.05 * peak, 0.05 * peak]
    assert [float(rate(step)) for step in at] == pytest.approx(expected, rel=1e-4)


def test_masss_blocks_have_the_gelu_and_the_epsilon_of_the_authors_code():
    model = config_of("mass", "base").model
    assert (model.mlp, model.norm_epsilon) == ("exact_gelu", 1e-12)


def test_llama_2s_70b_has_half_of_the_rate_of_the_smaller_models():
    optimizers = {preset: config_of("clm", preset).optimizer for preset in ("7b", "13b", "70b")}
    rates = {preset: (optimizer.learning_rate, optimizer.eps) for preset, optimizer in optimizers.items()}
    assert rates == {"7b": (3e-4, 1e-8), "13b": (3e-4, 1e-8), "70b": (1.5e-4, 1e-5)}


@pytest.mark.parametrize(("preset", "rate"), [("base", 3e-5), ("large", 1e-5)])
def test_simcse_has_the_adam_of_hugging_faces_trainer(preset, rate):
    optimizer = config_of("simcse", preset).optimizer
    assert (optimizer.learning_rate, optimizer.b2, optimizer.eps, optimizer.weight_decay) == (rate, 0.999, 1e-8, 0.0)


# Numbers of the papers and of their authors' code.
PAPERS = {
    ("span_corruption", "base"): {"optimizer": (0.01, 10_000), "train": (2048, 1_000_000), "data": (512,)},
    ("iid_denoising", "base"): {"optimizer": (0.01, 10_000), "train": (128, 2**19), "data": (512,)},
    ("mlm", "base"): {"optimizer": (1e-4, 10_000), "train": (256, 1_000_000), "data": (512,)},
    ("mlm", "base,roberta"): {"optimizer": (5e-4, 10_000), "train": (2048, 125_000), "data": (512,)},
    ("bart", "large"): {"optimizer": (4e-4, 10_000), "train": (8000, 500_000), "data": (512,)},
    ("electra", "small"): {"optimizer": (5e-4, 10_000), "train": (128, 1_000_000), "data": (128,)},
    ("electra", "base"): {"optimizer": (2e-4, 10_000), "train": (256, 766_000), "data": (512,)},
    ("electra", "large"): {"optimizer": (2e-4, 10_000), "train": (2048, 400_000), "data": (512,)},
    ("mlm", "modernbert_base"): {"optimizer": (8e-4, 636), "train": (4608, 424_000), "data": (1024,)},
    ("mlm", "modernbert_large"): {"optimizer": (5e-4, 424), "train": (4608, 424_000), "data": (1024,)},
    ("mlm", "mmbert_base"): {"optimizer": (8e-4, 636), "train": (4608, 636_000), "data": (1024,)},
    ("mlm", "neobert_base"): {"optimizer": (1e-4, 2000), "train": (2048, 1_000_000), "data": (1024,)},
    ("clm", "7b"): {"optimizer": (3e-4, 2000)},
    ("ul2", "20b"): {"optimizer": (0.01, 10_000), "train": (1024, 2_000_000), "data": (512,)},
    ("ul2r", "7b"): {"optimizer": (1e-4, 500), "train": (32, 20_000)},
    ("sft", "7b"): {"optimizer": (2e-5, 37), "train": (32, 0), "data": (512,)},
    ("sft", "13b"): {"optimizer": (1e-5, 37), "train": (32, 0), "data": (512,)},
}
FIELDS = {"optimizer": ("learning_rate", "warmup_steps"), "train": ("batch_size", "steps"), "data": ("inputs_length",)}


@pytest.mark.parametrize(("name", "preset"), PAPERS)
def test_rates_warm_ups_batches_and_steps_are_the_papers(name, preset):
    config = config_of(name, preset)
    for section, expected in PAPERS[name, preset].items():
        assert tuple(config[section][field] for field in FIELDS[section][: len(expected)]) == expected


def test_the_decay_of_weights_and_rates():
    found = {}
    for name, preset in (("clm", "7b"), ("mlm", "base"), ("mlm", "mmbert_base"), ("mlm", "neobert_base")):
        optimizer = config_of(name, preset).optimizer
        weights = optimizer.weight_decay * (optimizer.learning_rate if optimizer.schedule == "wsd" else 1.0)
        found[preset] = optimizer.b2, pytest.approx(weights), optimizer.final_learning_rate_fraction
    assert found == {
        "7b": (0.95, 0.1, 0.1),
        "base": (0.999, 0.01, 0.0),
        "mmbert_base": (0.95, 8e-5, 0.02),
        "neobert_base": (0.95, 0.01, 0.1),
    }
    assert config_of("mlm", "mmbert_base").optimizer.decay_fraction == pytest.approx(100e9 / 3e12)
    epochs = {preset: config_of("sft", preset).train.epochs for preset in ("7b", "13b")}
    assert epochs == {"7b": 3.0, "13b": 5.0}


def spans_of(config):
    """Denoisers of span corruption by mode: the noise density and the mean length of a span of each."""
    rows = [row for row in config.objective.denoisers.values() if row.name == "span_corruption"]
    modes = {row.mode for row in rows}
    return {m: {(row.noise_density, row.mean_noise_span_length) for row in rows if row.mode == m} for m in modes}


def shares_of(config):
    """The share of the examples of each mode."""
    weights = collections.Counter()
    for row in config.objective.denoisers.values():
        weights[row.mode] += row.weight
    return {mode: pytest.approx(weight / weights.total()) for mode, weight in weights.items()}


def test_ul2s_denoisers_are_those_of_table_1_and_ul2rs_those_of_its_port():
    r, x = {(0.15, 3), (0.15, 8)}, {(0.5, 3), (0.5, 8), (0.15, 64), (0.5, 64)}
    assert spans_of(config_of("ul2", "base")) == {"[R]": r, "[X]": x}
    assert config_of("ul2", "base").objective.denoisers.s.target_fraction == 0.25
    assert spans_of(config_of("ul2r", "7b")) == {"[R]": {(0.15, 3)}, "[X]": {(0.15, 32), (0.5, 3)}}
    shares = {
        ("ul2", "equal"): (2 / 7, 1 / 7, 4 / 7),
        ("ul2", "s20_r40_x40"): (0.4, 0.2, 0.4),
        ("ul2", "s34_r33_x33"): (0.33, 0.34, 0.33),
        ("ul2r", "ul2r"): (0.25, 0.5, 0.25),
    }
    for (name, variant), expected in shares.items():
        assert shares_of(config_of(name, variant)) == dict(zip(("[R]", "[S]", "[X]"), expected, strict=True)), variant


@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_the_sentinels_that_ul2s_docstring_names_are_the_fewest(distribution):
    docstring = " ".join(ul2.__doc__.split())
    uniform, normal = map(int, re.search(r'data.num_sentinels=(\d+), and with "normal" (\d+)', docstring).groups())
    config = config_of("ul2", "base")
    config.objective.denoisers.x1.span_length_distribution = distribution
    config.data.num_sentinels = {"uniform": uniform, "normal": normal}[distribution]
    make_experiment(config)
    config.data.num_sentinels -= 1
    with pytest.raises(ConfigError, match="too few for x1"):
        make_experiment(config)


def test_ul2s_released_checkpoints_have_other_mode_tokens():
    config = config_of("ul2", "released")
    assert shares_of(config) == {"[NLU]": 2 / 7, "[S2S]": 1 / 7, "[NLG]": 4 / 7}
    assert make_experiment(config.to_dict()).config["data"]["mode_tokens"] == tuple(shares_of(config))


def test_the_second_phase_of_clm_then_mlm_is_the_papers_mlm():
    """MLMvsCLM's models are mlm40, and Optimus masks all selected tokens and predicts them in place."""
    config = config_of("clm_then_mlm", "clm_75_mlm")
    _, masked = make_experiment(config.to_dict()).denoisers
    fields = dict(mask_rate=0.4, mask_token_rate=1.0, random_token_rate=0.0, mask_count="probabilistic")
    assert (masked.name, fields.items() <= vars(masked.objective).items()) == ("mlm", True)
    assert (config.objective.begin_step, config.objective.end_step) == (0.75, 0.75)


@pytest.mark.parametrize("size", [17, 150])
def test_ettins_decoders_differ_from_its_encoders_in_the_objective_and_in_what_a_token_sees(size):
    pair = [config_of(name, f"ettin_{size}m").to_dict() for name in ("mlm", "clm")]
    differing = {
        f"{section}.{field}"
        for section in ("data", "model", "loss", "optimizer", "train", "mesh")
        for field in pair[0][section]
        if pair[0][section][field] != pair[1][section][field]
    }
    assert differing == {"model.architecture", "data.documents", "data.targets_length"}
    assert make_experiment(pair[1]).learner.model.global_every == 3


OBJECTIVES = {
    ("electra", "base"): dict(generator_size=1 / 3, discriminator_weight=50, mask_rate=0.15),
    ("electra", "large"): dict(generator_size=0.25, discriminator_weight=50, mask_rate=0.25),
    ("bart", "large"): dict(mask_rate=0.3, poisson_lambda=3, permute_sentences=1, mask_random=0.1),
    ("mass", "base"): dict(mask_rate=0.5, mask_token_rate=0.8, random_token_rate=0.1),
    ("pegasus", "large"): dict(gap_ratio=0.3),
    ("simcse", "base"): dict(temperature=0.05, mlm_weight=0),
    ("fim", "base"): dict(fim_rate=0.5, spm_rate=0.5),
    ("multi_token_prediction", "7b"): dict(num_future_tokens=4, loss_weight=1),
    ("multi_token_prediction", "7b,sequential"): dict(num_future_tokens=2, loss_weight=0.3),
}


@pytest.mark.parametrize(("name", "preset"), OBJECTIVES)
def test_the_numbers_of_an_objective_are_the_papers(name, preset):
    objective = config_of(name, preset).objective
    assert {field: objective[field] for field in OBJECTIVES[name, preset]} == OBJECTIVES[name, preset]


def test_unilms_patterns_and_glms_documents():
    weights = {name: row.weight for name, row in config_of("unilm", "base").objective.denoisers.items()}
    both = dict.fromkeys(("bidirectional", "sequence_to_sequence"), 1 / 3)
    assert weights == both | dict.fromkeys(("left_to_right", "right_to_left"), 1 / 6)
    blank, document = config_of("glm", "large,document").objective.denoisers.values()
    assert (blank.mask_rate, blank.poisson_lambda, document.mask_rate) == (0.15, 3, 0.5)  # spans of 50 to 100%
