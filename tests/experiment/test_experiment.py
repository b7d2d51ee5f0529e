"""Invalid configs, each reported in one line with its field and a remedy, and what experiments derive from configs."""

import pytest

from configs import masked_diffusion
from configs.base import denoiser
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from experiment.objective import make_objective
from run.compiled_run import make_run
from tests.table import CASES, random_windows, small_config, small_experiment


def assert_refused(message, name="ul2", architecture="encoder_decoder", **overrides):
    with pytest.raises(ConfigError, match=message) as error:
        make_experiment(small_config(name, architecture, **overrides))
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("data__input_length", 5, r"unknown config field data.input_length: did you mean data.inputs_length\?"),
        ("model__has_prefix", True, r"config field model.has_prefix cannot be set: it is derived from the objective"),
        ("model__vocab_size", 5, r"model.vocab_size=5 must be at least \d+, the number of the tokenizer's ids, or 0"),
        ("optimizer__learning_rate", "fast", r"optimizer.learning_rate='fast' must be of type float, not str"),
        ("train__steps", 2.5, r"train.steps=2.5 must be of type int, not float"),
        ("train__grad_accum_steps", 3, r"train.batch_size=8 must be a multiple of train.grad_accum_steps=3"),
        ("data__source", "stdlob", r"data.source='stdlob' must be one of .* did you mean 'stdlib'\?"),
        (
            "data__mode_tokens",
            ("[R]", "[S]"),
            r"mode token '\[X\]' is none of \('\[R\]', '\[S\]'\): add it to data.mode_tokens",
        ),
        ("data__mode_tokens", "[R]", r"data.mode_tokens='\[R\]' must be a tuple"),
        ("data__num_sentinels", 3, r"data.num_sentinels=3 is too few for x1: .* set data.num_sentinels=\d+ or more"),
        ("data__targets_length", 20, r"data.targets_length=20 is too short for \w+ at data.inputs_length=40"),
        ("data__inputs_length", 2, r"data.inputs_length=2 is too short for r1: set it to \d+ or more"),
        ("data__documents", "pack", r"data.documents='pack' does not go with objective.denoisers.r1"),
        ("data__tokenizer", "bytes", r"data.tokenizer='bytes'"),
        (
            "model__architecture",
            "decoder",
            r"model.architecture='decoder' must be one of .* did you mean 'decoder_only'",
        ),
        ("model__num_kv_heads", 3, r"model.num_kv_heads=3 must divide model.num_heads=2"),
        ("optimizer__warmup_steps", 9, r"optimizer.warmup_steps=9 .*train.steps"),
    ],
)
def test_invalid_fields_raise_one_line(field, value, message):
    assert_refused(message, **{field: value})


def test_rows_of_tables_are_those_of_the_config_or_derived():
    learned = dict(model__positions="learned", data__targets_length=50)
    ids = small_experiment("bart", "encoder_decoder").vocab.size
    model = small_experiment("bart", "encoder_decoder", **learned).model
    assert (model.vocab_size % 128, model.vocab_size - ids < 128, model.max_length) == (0, True, 50)
    model = small_experiment("bart", "encoder_decoder", **learned, model__vocab_size=ids, model__max_length=60).model
    assert (model.vocab_size, model.max_length) == (ids, 60)
    assert_refused(
        r"data.targets_length=50 must be at most model.max_length=49, the number of learned positions",
        "bart", "encoder_decoder", **learned, model__max_length=49,
    )  # fmt: skip
    # A single stack does not read data.targets_length, and rotary positions have no table.
    small_experiment("clm", "decoder_only", **learned, model__max_length=40)
    small_experiment("clm", "decoder_only", model__positions="rope", model__max_length=39)


def test_an_objective_that_needs_all_logits_refuses_a_chunked_loss():
    assert_refused(
        r"loss.chunk_size=8 must be 0 for objective.name='electra'", "electra", "encoder_only", loss__chunk_size=8
    )


def test_the_fields_of_a_mixtures_denoisers_are_checked():
    fields = small_config("ul2", "encoder_decoder")["objective"]
    row = fields["denoisers"]["x1"]
    for change, message in [
        (
            {"noise_densty": 0.5},
            r"unknown config field objective.denoisers.x1.noise_densty: did you mean .*noise_density",
        ),
        ({"weight": "much"}, r"objective.denoisers.x1.weight='much' must be of type float"),
        ({"name": "span"}, r"objective.denoisers.x1.name='span' must be one of 'any_order', "),
    ]:
        with pytest.raises(ConfigError, match=message):
            make_objective(fields | {"denoisers": {"x1": row | change}})
    with pytest.raises(ConfigError, match=r"objective.name='ul3' must be one of"):
        make_objective({"name": "ul3"})
    assert_refused(
        r"objective.denoisers.x1.weight=-1.0 must be 0 or more", objective__denoisers={"x1": row | {"weight": -1.0}}
    )
    assert_refused(r"objective.denoisers: every weight is 0", objective__denoisers={"x1": row | {"weight": 0.0}})
    assert_refused(r"objective.denoisers.x1.noise_density=1.5 must be in \(0, 1\)",
            objective__denoisers={"x1": row | {"noise_density": 1.5}})  # fmt: skip


def test_the_denoisers_of_ul2_are_those_of_the_paper():
    experiment = make_experiment(small_config("ul2", "decoder_only"))
    table = {
        denoiser.name: (
            denoiser.mode,
            getattr(denoiser.objective, "mean_noise_span_length", None),
            getattr(denoiser.objective, "noise_density", 0.25),
        )
        for denoiser in experiment.denoisers
    }
    assert table == {
        "r1": ("[R]", 3.0, 0.15),
        "r2": ("[R]", 8.0, 0.15),
        "s": ("[S]", None, 0.25),
        "x1": ("[X]", 3.0, 0.5),
        "x2": ("[X]", 8.0, 0.5),
        "x3": ("[X]", 64.0, 0.15),
        "x4": ("[X]", 64.0, 0.5),
    }


def test_the_mode_token_is_the_first_input_and_never_a_target():
    experiment = make_experiment(small_config("ul2", "encoder_decoder", data__mode_tokens=("[R]", "[X]", "[S]")))
    vocab = experiment.vocab
    batch = experiment.collate(random_windows(experiment, 7, same_keys=False), 7)
    modes = [vocab.mode(denoiser.mode) for denoiser in experiment.denoisers]
    assert batch["encoder_input_tokens"][:, 0].tolist() == modes
    all_modes = dict(vocab.modes).values()
    assert not any((batch["decoder_target_tokens"] == mode).any() for mode in all_modes)
    assert all((batch["encoder_input_tokens"] == mode).sum() == modes.count(mode) for mode in all_modes)


def test_a_mode_token_has_no_place_in_pieces_of_documents():
    config = small_config("hybrid", "decoder_only", data__documents="pack")
    config["objective"]["denoisers"]["clm"]["mode"] = "[R]"
    message = r"^objective.denoisers.clm.mode='\[R\]' would be added to each .* data.documents='pack' leaves no place"
    with pytest.raises(ConfigError, match=message):  # a batch of two pieces raised a ValueError during training
        make_experiment(config)
    config["data"]["documents"] = "split"
    make_experiment(config)


def test_an_objective_without_fields_says_so():
    message = r"^unknown config field objective.mask_rate: remove it$"
    with pytest.raises(ConfigError, match=message):
        make_objective({"name": "clm", "mask_rate": 0.1})
    with pytest.raises(ConfigError, match=r"^config field objective.target_fraction is missing, .* with --same_model"):
        make_objective({"name": "prefix_lm", "sentinel": False, "split": "uniform"})


@pytest.mark.parametrize("name", [name for name, architecture in CASES if architecture == "decoder_only"])
def test_a_model_has_a_prefix_exactly_if_its_batches_have_one(name):
    fields = small_config(name, "decoder_only")["objective"]
    is_xlnet = fields["name"] == "any_order" and fields["predicted_share"] < 1  # its inputs are read in their order
    has_heads = fields["name"].startswith("response_") and fields["name"] != "response_diffusion"
    for bidirectional in (False,) if is_xlnet or has_heads else (True, False):
        experiment = small_experiment(name, "decoder_only", data__bidirectional_inputs=bidirectional)
        batch = experiment.collate(random_windows(experiment, 8, same_keys=False), 8)
        assert experiment.model.has_prefix == batch["decoder_bidirectional_mask"].any()


def test_an_attention_kernel_for_other_hardware_raises():
    experiment = make_experiment(small_config("clm", "decoder_only", model__attention="splash"))
    with pytest.raises(ConfigError, match=r"^model.attention='splash' must be .*: splash needs a TPU, not cpu$"):
        make_run(experiment)


def test_a_mesh_of_more_devices_than_there_are_raises(corpus):
    experiment = make_experiment(small_config("clm", "decoder_only", mesh__data=2))
    with pytest.raises(ConfigError, match=r"mesh.data=2, .*: the product must be the number of devices, 1"):
        make_run(experiment)


def test_a_mean_of_exact_bits_and_a_bound_has_no_name():
    """CLM and masked diffusion both have bits per byte, of which one are exact and the others a bound."""
    fields = small_config("hybrid", "decoder_only")
    clm = fields["objective"]["denoisers"]["clm"]
    assert make_experiment(fields).byte_metric == ""
    diffusion = masked_diffusion.VARIANTS["next"]
    fields["objective"]["denoisers"] = {"clm": clm, "diffusion": denoiser(mode="", weight=1.0, **diffusion)}
    assert make_experiment(fields).byte_metric == ""
    fields["objective"]["denoisers"] = {"clm": clm, "again": clm}
    assert make_experiment(fields).byte_metric == "bits_per_byte"


@pytest.mark.parametrize(("documents", "side"), [(4, "training"), (40, "held-out")])
def test_a_corpus_smaller_than_one_window_is_refused_before_training(documents, side, tmp_path):
    """Documents have 9 tokens and an EOS, and one document is held out; a window has 40 tokens."""
    (tmp_path / "text.txt").write_text("\n".join(f"line {i:04}" for i in range(documents)))
    config = small_config("clm", "decoder_only", data__source="text", data__path=str(tmp_path / "text.txt"),
                          data__document_per="line", data__heldout_fraction=0.02,
                          data__cache_dir=str(tmp_path / "cache"))  # fmt: skip
    with pytest.raises(ConfigError, match=rf"{side}.*tokens.*data.inputs_length"):
        make_run(make_experiment(config))
