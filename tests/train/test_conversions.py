"""A model that starts as another: which arrays are copied, what they compute then, and what no rule converts."""

import jax
import numpy as np
import pytest

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from huggingface.origin import with_origin_fields
from models.parameters import leaf_name
from run.compiled_run import make_run
from tests.models import tiny
from tests.table import small_config
from tests.train.small_runs import save_run
from train.init_from import check_init_from, start_from


def fields(corpus, name, architecture, **overrides):
    """A config with the model of configs/clm.py on the tests' corpus."""
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    config = small_config(name, architecture, **text)
    model = small_config("clm", architecture)["model"]
    config["model"] |= {name: value for name, value in model.items() if name != "architecture"}
    for field, value in overrides.items():
        section, _, name = field.partition("__")
        config[section][name] = value
    return config


def save(folder, corpus, architecture="decoder_only", **overrides):
    """Writes a run whose array values are all different, and returns its experiment and its Transformer."""
    name = {"decoder_only": "clm", "encoder_only": "mlm", "encoder_decoder": "prefix_lm"}[architecture]
    experiment = make_experiment(fields(corpus, name, architecture, **overrides))
    rng, shapes = np.random.default_rng(0), experiment.params_shapes["transformer"]
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.2, leaf.shape).astype(leaf.dtype), shapes)
    save_run(experiment, str(folder), params)
    return experiment, params


def started(corpus, path, name, architecture, **overrides):
    """Returns the run that starts from `path`, its Transformer as it starts, and the lines about it."""
    config = fields(corpus, name, architecture, train__init_from=str(path), **overrides)
    run = make_run(make_experiment(config), show_progress=False)
    before = jax.tree.map(lambda leaf: np.full(leaf.shape, -7.0, leaf.dtype), run.state_shapes.params)
    params, lines = start_from(run, before, str(path))
    return run, params["transformer"], lines


def by_name(tree):
    return {leaf_name(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def row(vocab, causal):
    """A row of a decoder, read from the left or in both directions, and the same row of an encoder."""
    tokens = np.array([[vocab.decoder_start, 40, 41, 50, 44, 43, 0, 0]], np.int32)
    segment_ids = (tokens > 0).astype(np.int32)
    segment_ids[:, 0] = 1
    fields = {"input_tokens": tokens, "segment_ids": segment_ids, "positions": np.arange(8)[None] * segment_ids}
    decoder = {f"decoder_{name}": array.astype(np.int32) for name, array in fields.items()}
    decoder["decoder_bidirectional_mask"] = (segment_ids > 0) & (not causal)
    return decoder, {f"encoder_{name}": array.astype(np.int32) for name, array in fields.items()}


@pytest.mark.parametrize("name", ["hybrid", "hybrid:mntp", "masked_diffusion:next", "mlm"])
def test_a_decoder_becomes_a_masked_model_with_the_decoders_logits_in_causal_rows(corpus, tmp_path, name):
    there, saved = save(tmp_path, corpus)
    run, params, lines = started(corpus, tmp_path, name, "decoder_only")
    jax.tree.map(np.testing.assert_array_equal, params, saved)
    count = sum(leaf.size for leaf in jax.tree.leaves(saved))
    place = "at its own position, and in that run where the token before it is read"
    assert lines[1:] == [
        " converted  that decoder is causal, and here attention to later tokens is open from the first step",
        *[f" converted  a token is predicted {place}"] * (name == "mlm"),
        f"    copied  {count:,} parameters in {len(jax.tree.leaves(saved))} arrays",
    ]
    assert run.experiment.model.has_prefix and not there.model.has_prefix
    causal, _ = row(there.vocab, causal=True)
    expected = np.asarray(tiny.run(there.model, saved, causal))
    np.testing.assert_array_equal(tiny.run(run.experiment.model, params, causal), expected)
    open_at_once, _ = row(there.vocab, causal=False)
    assert (np.asarray(tiny.run(run.experiment.model, params, open_at_once))[:, :5] != expected[:, :5]).any(-1).all()


@pytest.mark.parametrize("positions", ["rope", "learned"])
@pytest.mark.parametrize("name", ["hybrid:mntp", "masked_diffusion:next", "mlm"])
def test_a_decoder_becomes_an_encoder_that_computes_what_the_decoder_does_in_both_directions(
    corpus, tmp_path, name, positions
):
    there, saved = save(tmp_path, corpus, model__positions=positions)
    run, params, lines = started(corpus, tmp_path, name, "encoder_only", model__positions=positions)
    expected = {path.replace("decoder/", "encoder/"): array for path, array in by_name(saved).items()}
    found = by_name(params)
    assert found.keys() == expected.keys()
    for path, array in found.items():
        np.testing.assert_array_equal(array, expected[path], err_msg=path)
    assert lines[1] == (
        " converted  the layers of the decoder are those of an encoder, whose positions see the whole text at once"
    )
    model = make_experiment(fields(corpus, name, "decoder_only", model__positions=positions)).model
    of_decoder, of_encoder = row(there.vocab, causal=False)
    logits = np.asarray(tiny.run(run.experiment.model, params, of_encoder))
    np.testing.assert_array_equal(logits, tiny.run(model, saved, of_decoder))


def test_an_encoder_becomes_a_decoder(corpus, tmp_path):
    _, saved = save(tmp_path, corpus, "encoder_only")
    _, params, _ = started(corpus, tmp_path, "clm", "decoder_only")
    for path, array in by_name(params).items():
        np.testing.assert_array_equal(array, by_name(saved)[path.replace("decoder/", "encoder/")], err_msg=path)


@pytest.mark.parametrize("overrides", [{}, {"model__max_length": 80, "model__d_model": 64}])
def test_an_encoder_with_token_types_becomes_a_decoder_whose_positions_have_type_0(corpus, tmp_path, overrides):
    bert = {"model__positions": "learned", "model__embedding_norm": True, "model__prediction_head": "bert"}
    there, saved = save(tmp_path, corpus, "encoder_only", model__num_token_types=2, **bert)
    config = fields(corpus, "mlm", "decoder_only", train__init_from=str(tmp_path), **bert | overrides)
    given = {"model.architecture": "decoder_only"} | {k.replace("__", "."): v for k, v in overrides.items()}
    assert with_origin_fields(config, given)["model"]["num_token_types"] == 0
    assert with_origin_fields(config, given | {"model.num_token_types": 0})["model"]["num_token_types"] == 0
    run, params, lines = started(corpus, tmp_path, "mlm", "decoder_only", **bert | overrides)
    assert lines[2] == (
        " converted  a decoder has no token types: the vector of type 0, that of texts, is added to each position's"
    )
    assert not any(line.lstrip().startswith("new") for line in lines)
    table, types = (saved[f"{name}_embedder"]["embedding"] for name in ("position", "token_type"))
    n, d = table.shape
    np.testing.assert_array_equal(by_name(params)["position_embedder/embedding"][:n, :d], table + types[0])
    of_decoder, of_encoder = row(there.vocab, causal=False)
    logits = np.asarray(tiny.run(run.experiment.model, params, of_decoder))[:, :6]
    np.testing.assert_allclose(
        logits, np.asarray(tiny.run(there.model, saved, of_encoder))[:, :6], rtol=1e-4, atol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("embedding", "own_tables"),
    [
        ({}, {}),
        ({"model__positions": "learned", "model__embedding_norm": True}, {}),
        ({"model__sandwich_norm": True, "model__scale_embeddings": True}, {"model__share_embeddings": False}),
    ],
)
def test_a_decoder_becomes_both_stacks_of_an_encoder_decoder(corpus, tmp_path, embedding, own_tables):
    _, saved = save(tmp_path, corpus, **embedding)
    run, params, _ = started(corpus, tmp_path, "prefix_lm", "encoder_decoder", **embedding, **own_tables)
    found, saved = by_name(params), by_name(saved)
    own = {"encoder": "decoder", "cross_attention": "self_attention", "cross_attention_norm": "self_attention_norm"}
    own["cross_attention_post_norm"] = "self_attention_post_norm"
    names = ("token_embedder", "position_embedder", "embedding_norm")
    own |= {f"{stack}_{name}": name for stack in ("encoder", "decoder") for name in names}
    for path, array in found.items():
        parts = [own.get(part, part) for part in path.split("/")]
        np.testing.assert_array_equal(array, saved["/".join(parts)], err_msg=path)
    assert any("cross_attention" in path for path in found)
    assert any("encoder_token_embedder" in path for path in found) == bool(own_tables)
    # A step that donates the state: no array may be in it twice.
    state = run.init_state().starting_with(start_from(run, run.init_state().params, str(tmp_path))[0])
    _, metrics = run.train_step(state, run.to_devices(next(run.train_batches(0))))
    assert np.isfinite(metrics["loss_sum"])


def test_a_decoder_becomes_both_stacks_whose_attention_is_merged(corpus, tmp_path):
    there, saved = save(tmp_path, corpus, model__tie_embeddings=True)
    merged = {"model__merged_attention": True, "model__tie_embeddings": True}
    run, params, lines = started(corpus, tmp_path, "prefix_lm", "encoder_decoder", **merged)
    found, saved_by_name = by_name(params), by_name(saved)
    for path, array in found.items():
        np.testing.assert_array_equal(array, saved_by_name[path.replace("encoder/", "decoder/")], err_msg=path)
    assert not any("cross_attention" in path for path in found)
    assert lines[1] == (
        " converted  the layers of the decoder are those of both stacks, and its self-attention reads both texts"
    )
    assert len(lines) == 3  # nothing is new
    # A text of which nothing is in the encoder has the decoder's logits.
    decoder, encoder = row(there.vocab, causal=True)
    nothing = {name: np.zeros_like(array) for name, array in encoder.items()}
    logits = np.asarray(tiny.run(run.experiment.model, params, decoder | nothing))[:, :5]
    np.testing.assert_array_equal(logits, np.asarray(tiny.run(there.model, saved, decoder))[:, :5])
    state = run.init_state().starting_with(start_from(run, run.init_state().params, str(tmp_path))[0])
    _, metrics = run.train_step(state, run.to_devices(next(run.train_batches(0))))
    assert np.isfinite(metrics["loss_sum"])


def test_the_positions_of_a_decoder_are_continued_from_the_encoders(corpus, tmp_path):
    save(tmp_path / "clm", corpus)
    continuous = {"model__continuous_positions": True}
    _, params, lines = started(corpus, tmp_path / "clm", "prefix_lm", "encoder_decoder", **continuous)
    assert lines[2] == " converted  the decoder's positions are counted on from the encoder's, whose keys are rotary"
    assert not (by_name(params)["decoder/layers/cross_attention/key/kernel"] == -7).any()
    save(tmp_path / "prefix_lm", corpus, "encoder_decoder", **continuous)
    config = fields(corpus, "prefix_lm", "encoder_decoder", train__init_from=str(tmp_path / "prefix_lm"))
    with pytest.raises(
        ConfigError, match=r"model.continuous_positions is True in that run and False here, so the same"
    ):
        check_init_from(make_experiment(config))


@pytest.mark.parametrize("positions", ["rope", "learned"])
def test_a_decoder_reads_texts_in_any_order_and_first_as_it_did(corpus, tmp_path, positions):
    there, saved = save(tmp_path, corpus, model__positions=positions, model__max_length=41)
    overrides = {"model__positions": positions, "model__max_length": 41, "model__target_positions": True}
    run, params, lines = started(corpus, tmp_path, "sigma_gpt", "decoder_only", **overrides)
    new = params.pop("target_positions")
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(new))
    jax.tree.map(np.testing.assert_array_equal, params, saved)
    name = "position_embedder/embedding" if positions == "learned" else "offset_projection/kernel"
    count = sum(leaf.size for leaf in jax.tree.leaves(new))
    assert lines[1:] == [
        " converted  the positions of targets are new and 0: texts from left to right have that model's logits",
        f"    copied  {sum(x.size for x in jax.tree.leaves(saved)):,} parameters in {len(by_name(saved))} arrays",
        f"       new  {count:,} parameters: target_positions/{name}",
    ]
    batch, _ = row(there.vocab, causal=True)
    logits = tiny.run(run.experiment.model, params | {"target_positions": new}, batch)
    np.testing.assert_array_equal(logits, tiny.run(there.model, saved, batch))
    state = run.init_state().starting_with(start_from(run, run.init_state().params, str(tmp_path))[0])
    for batch in (next(run.train_batches(step)) for step in range(2)):  # the first step of a warm-up changes nothing
        state, metrics = run.train_step(state, run.to_devices(batch))
    assert np.isfinite(metrics["loss_sum"])
    assert np.abs(by_name(state.params["transformer"])[f"target_positions/{name}"]).max() > 0


def test_layers_are_repeated(corpus, tmp_path):
    _, saved = save(tmp_path, corpus)
    _, params, lines = started(corpus, tmp_path, "clm", "decoder_only", model__num_layers=6)
    for path, array in by_name(params).items():
        expected = by_name(saved)[path]
        np.testing.assert_array_equal(
            array, np.tile(expected, (3, *[1] * (expected.ndim - 1))) if "/layers/" in path else expected
        )
    assert lines[1] == " converted  the 2 layers are repeated 3 times, one stack after another"
    assert "copied" in lines[2] and len(lines) == 3


def test_the_layers_of_each_stack_are_repeated(corpus, tmp_path):
    """From stacks of 4 and 1 layers to 4 and 3."""
    shape = {"model__num_layers": 4, "model__num_decoder_layers": 1}
    _, saved = save(tmp_path, corpus, "encoder_decoder", **shape)
    pair = "prefix_lm", "encoder_decoder"
    config = fields(corpus, *pair, train__init_from=str(tmp_path))
    taken = with_origin_fields(config, {})["model"]
    assert (taken["num_layers"], taken["num_decoder_layers"]) == (4, 1)
    assert with_origin_fields(config, {"model.num_decoder_layers": 3})["model"]["num_layers"] == 4
    _, params, lines = started(corpus, tmp_path, *pair, **shape | {"model__num_decoder_layers": 3})
    for path, array in by_name(params).items():
        expected = by_name(saved)[path]
        is_deeper = path.startswith("decoder/layers/")
        np.testing.assert_array_equal(array, np.concatenate([expected] * 3) if is_deeper else expected, err_msg=path)
    assert lines[1] == " converted  the 1 layers of the decoder are repeated 3 times, one stack after another"
    assert "copied" in lines[2] and len(lines) == 3
    _, again, lines = started(corpus, tmp_path, *pair, **shape)
    jax.tree.map(np.testing.assert_array_equal, again, saved)
    assert "copied" in lines[1] and len(lines) == 2


def test_a_decoder_becomes_two_stacks_of_different_depths(corpus, tmp_path):
    _, saved = save(tmp_path, corpus)
    shape = {"model__num_layers": 2, "model__num_decoder_layers": 4}
    _, params, lines = started(corpus, tmp_path, "prefix_lm", "encoder_decoder", **shape)
    found, (first, second) = by_name(params), by_name(saved)["decoder/layers/self_attention/query/kernel"]
    np.testing.assert_array_equal(found["encoder/layers/self_attention/query/kernel"], [first, second])
    for attention in ("self_attention", "cross_attention"):
        kernels = found[f"decoder/layers/{attention}/query/kernel"]
        np.testing.assert_array_equal(kernels, [first, second, first, second])
    assert lines[2] == " converted  the 2 layers of the decoder are repeated 2 times, one stack after another"


DECODER, CLM = ("decoder_only",), ("clm", "decoder_only")


@pytest.mark.parametrize(
    ("of", "there", "to", "here", "message"),
    [
        (DECODER, {}, CLM, {"num_layers": 3}, "num_layers=3 must be a multiple of 2, the layers"),
        (DECODER, {}, CLM, {"num_layers": 1}, "num_layers=1 must be a multiple of 2, the layers"),
        (
            ("encoder_decoder",), {}, ("prefix_lm", "encoder_decoder"), {"merged_attention": True},
            "decoder/layers/cross_attention/key/kernel is .* in that run and missing here",
        ),
        (
            ("encoder_decoder",), {}, ("prefix_lm", "encoder_decoder"), {"num_decoder_layers": 3},
            "model.num_decoder_layers=3 must be a multiple of 2, the layers",
        ),
        (
            ("encoder_decoder",), {"num_decoder_layers": 4}, ("prefix_lm", "encoder_decoder"), {},
            "model.num_layers=2 must be a multiple of 4, the layers",
        ),
        (("encoder_decoder",), {}, CLM, {}, "'encoder_decoder' there and 'decoder_only' here: no rule"),
        (
            DECODER, {"positions": "relative"}, ("mlm", "encoder_only"), {"positions": "relative"},
            "no rule converts model.positions='relative'",
        ),
        (DECODER, {"rope_theta": 2e4}, CLM, {}, "model.rope_theta is 20000.0 in that run and 10000.0"),
        (DECODER, {}, CLM, {"d_model": 48}, "model.d_model=48 must be a multiple of 32, the number there, of which"),
        (DECODER, {}, CLM, {"mlp": "gelu"}, r"wi/kernel is missing in that run and float32\[2, 32, 48\] here"),
        (
            ("encoder_only",), {"num_token_types": 2}, CLM, {},
            "decoders have no token types, and model.positions='rope' has no table .* with model.num_token_types=0$",
        ),
        (DECODER, {}, ("nsp", "encoder_only"), {}, "token_type_embedder/embedding is missing in that run"),
    ],
)  # fmt: skip
def test_what_no_rule_converts_is_refused_in_one_line(corpus, tmp_path, of, there, to, here, message):
    save(tmp_path, corpus, *of, **{f"model__{field}": value for field, value in there.items()})
    overrides = {f"model__{field}": value for field, value in here.items()}
    experiment = make_experiment(fields(corpus, *to, train__init_from=str(tmp_path), **overrides))
    with pytest.raises(ConfigError, match=message) as error:
        check_init_from(experiment)
    assert "\n" not in str(error.value)


def test_a_longer_wavelength_is_stated(corpus, tmp_path):
    save(tmp_path, corpus)
    _, _, lines = started(corpus, tmp_path, "clm", "decoder_only", model__rope_theta=5e5)
    assert lines[1] == " converted  model.rope_theta is 500000 in place of 10000"


LOCAL = dict(model__global_every=2, model__local_distance=3, model__local_rope_theta=50.0)


@pytest.mark.parametrize("field", ["rope_theta", "local_rope_theta"])
def test_both_wavelengths_may_be_set_on_the_command_line(corpus, tmp_path, field):
    save(tmp_path, corpus, **LOCAL)
    config = fields(corpus, "clm", "decoder_only", train__init_from=str(tmp_path), **{f"model__{field}": 5e5})
    taken = with_origin_fields(config, {f"model.{field}": 5e5})
    assert taken["model"][field] == 5e5
    check_init_from(make_experiment(taken))


@pytest.mark.parametrize(
    ("there", "here", "message"),
    [
        (LOCAL, LOCAL | {"model__local_distance": 4}, "model.local_distance is 3 in that run and 4 here"),
        ({}, LOCAL, "model.global_every is 1 in that run and 2 here"),
        (LOCAL, LOCAL | {"model__local_rope_theta": 5.0}, "model.local_rope_theta is 50.0 in that run and 5.0 here"),
        ({"model__logits_softcap": 30.0}, {}, "model.logits_softcap is 30.0 in that run and 0.0 here"),
        ({"model__qk_norm": True}, {}, "decoder/layers/self_attention/key_norm/scale is .* and missing here"),
        (
            LOCAL | {"model__num_layers": 3},
            LOCAL | {"model__num_layers": 6},
            "repeats the 3 layers there, which are not a multiple of model.global_every=2: local layers would become",
        ),
        (
            {"model__first_attention_norm": False},
            {"model__first_attention_norm": False, "model__num_layers": 4},
            "model.num_layers=4 repeats layer 0, which .* has no norm .* an untrained one: set it to 2$",
        ),
        (  # not "a multiple of 2", which is refused too
            {"model__first_attention_norm": False},
            {"model__first_attention_norm": False, "model__num_layers": 3},
            "model.num_layers=3 repeats layer 0",
        ),
    ],
)
def test_fields_of_local_attention_and_soft_caps_are_those_of_the_earlier_run(corpus, tmp_path, there, here, message):
    save(tmp_path, corpus, **there)
    experiment = make_experiment(fields(corpus, "clm", "decoder_only", train__init_from=str(tmp_path), **here))
    with pytest.raises(ConfigError, match=message) as error:
        check_init_from(experiment)
    assert len(str(error.value).splitlines()) == 1
