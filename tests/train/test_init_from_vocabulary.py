"""Starting with a model of another vocabulary or another table of positions: rows by token, first rows, or one line."""

import os

import jax
import numpy as np
import pytest

from contract.errors import ConfigError
from experiment.experiment import make_experiment
from huggingface.vocabulary import token_texts
from run.compiled_run import make_run
from tests.data.test_tokenizer import train_model
from tests.table import small_config
from train.init_from import check_init_from, start_from
from workdir.checkpoint import Checkpoints
from workdir.run_config import write_config
from workdir.workdir import Workdir

BY_TOKEN = {"train__init_from_vocabulary": "by_token"}


def fields(corpus, **overrides):
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    bert = {"model__tie_embeddings": True, "model__prediction_head": "bert", "model__use_bias": True}
    name, architecture = ("mlm", "encoder_only") if "mlm" in overrides else ("clm", "decoder_only")
    overrides = {key: value for key, value in overrides.items() if key != "mlm"}
    return small_config(name, architecture, **(text | (bert if name == "mlm" else {}) | overrides))


def save(folder, corpus, **overrides):
    """Writes a run whose array values are all different, and returns its folder and its experiment."""
    run = make_run(make_experiment(fields(corpus, **overrides)), show_progress=False)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(leaf.dtype), run.state_shapes.params)
    write_config(folder, run.experiment.config)
    checkpoints = Checkpoints(os.path.join(folder, "checkpoints"), keep=1)
    checkpoints.save(1, {"params": params})
    checkpoints.close()
    return str(folder), run.experiment, params["transformer"]


def started(corpus, path, **overrides):
    """Returns the experiment, the Transformer, and the lines about it, of a run that starts from `path`."""
    run = make_run(make_experiment(fields(corpus, train__init_from=path, **overrides)), show_progress=False)
    before = jax.tree.map(lambda leaf: np.full(leaf.shape, -7.0, leaf.dtype), run.state_shapes.params)
    params, lines = start_from(run, before, path)
    return run.experiment, params["transformer"], lines


@pytest.mark.parametrize(
    ("overrides", "as_there"),
    [
        ({"data__num_sentinels": 90}, "data.num_sentinels=100"),
        ({"data__mode_tokens": ("[S]", "[R]", "[X]")}, "data.mode_tokens=('[R]', '[S]', '[X]')"),
    ],
    ids=["sentinels", "modes"],
)
def test_another_vocabulary_with_tables_of_the_same_shape_is_refused(corpus, tmp_path, overrides, as_there):
    """Padding to a multiple of 128 hides the difference from a comparison of shapes."""
    path, other, _ = save(tmp_path / "run", corpus)
    experiment = make_experiment(fields(corpus, train__init_from=path, **overrides))
    assert experiment.model.vocab_size == other.model.vocab_size
    with pytest.raises(ConfigError, match=r"has another vocabulary: id \d+ is '.*' there and '.*' here; ") as error:
        check_init_from(experiment)
    assert f": set {as_there} as there, or train.init_from_vocabulary='by_token' to copy" in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_another_tokenizer_is_named_by_its_copy_in_the_run(corpus, tmp_path):
    path, other, _ = save(tmp_path / "run", corpus, data__tokenizer=train_model(tmp_path / "m.model"))
    Workdir(path).write_tokenizer(other.tokenizer)
    experiment = make_experiment(fields(corpus, train__init_from=path))
    with pytest.raises(ConfigError) as error:
        check_init_from(experiment)
    copy = os.path.join(path, "tokenizer", "m.model")
    assert f": set data.tokenizer={copy!r} as there, or train.init_from_vocabulary=" in str(error.value)
    assert make_experiment(fields(corpus, train__init_from=path, data__tokenizer=copy)).vocab == other.vocab


@pytest.mark.parametrize(("objective", "sentinels"), [({}, 90), ({"mlm": True}, 300)], ids=["clm", "mlm"])
def test_rows_follow_their_tokens_and_new_tokens_keep_their_values(corpus, tmp_path, objective, sentinels):
    path, other, saved = save(tmp_path / "run", corpus, **objective)
    experiment, params, lines = started(corpus, path, data__num_sentinels=sentinels, **objective, **BY_TOKEN)
    here, there = token_texts(experiment.tokenizer), token_texts(other.tokenizer)
    rows_here, rows_there = params["token_embedder"]["embedding"], saved["token_embedder"]["embedding"]
    tables = [(rows_here, rows_there)]
    if objective:  # the output bias; the output table is tied
        tables.append((params["prediction_head"]["bias"], saved["prediction_head"]["bias"]))
    else:
        tables.append((params["logits_dense"]["kernel"].T, saved["logits_dense"]["kernel"].T))
    ids_there = {text: id_ for id_, text in enumerate(there)}
    assert here.index("<extra_id_0>") != there.index("<extra_id_0>")
    for new, old in tables:
        assert len(new) == experiment.model.vocab_size
        for id_, row in enumerate(np.asarray(new)):
            known = id_ < len(here) and here[id_] in ids_there
            np.testing.assert_array_equal(row, old[ids_there[here[id_]]] if known else np.full_like(row, -7.0))
    stack = "encoder" if objective else "decoder"
    jax.tree.map(np.testing.assert_array_equal, params[stack], saved[stack])
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    new = sum(int((np.asarray(leaf) == -7).sum()) for leaf in jax.tree.leaves(params))
    assert lines[1].startswith(f"    copied  {total - new:,} parameters in ")
    rows = len(rows_here) - len(set(here) & set(there))
    assert lines[2].startswith(f"       new  {new:,} parameters: ")
    assert f"token_embedder/embedding ({rows} of {len(rows_here)} rows)" in lines[2]
    [note] = check_init_from(experiment)
    common = len(set(here) & set(there))
    assert note.endswith(
        f"the rows of {common} tokens are copied by token, {len(here) - common} new tokens keep their initial values, "
        f"and {len(there) - common} tokens of that run have no row here"
    )


def test_positions_of_a_longer_and_of_a_shorter_table(corpus, tmp_path):
    learned = {"model__positions": "learned"}
    path, _, saved = save(tmp_path / "run", corpus, **learned)
    _, params, lines = started(corpus, path, data__inputs_length=24, data__targets_length=24, **learned)
    table = saved["position_embedder"]["embedding"]
    assert table.shape[0] == 40
    np.testing.assert_array_equal(params["position_embedder"]["embedding"], table[:24])
    assert lines[1] == " converted  there are 40 learned positions: the first 24 are copied"
    _, params, lines = started(corpus, path, data__inputs_length=96, **learned)
    np.testing.assert_array_equal(params["position_embedder"]["embedding"], np.concatenate([table, table, table[:16]]))
    assert lines[1] == " converted  there are 40 learned positions: repeated to 96"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"model__mlp": "gated_gelu"},
            "model.mlp is 'gated_silu' in that run and 'gated_gelu' here, so the same arrays",
        ),
        (
            {"model__norm_epsilon": 0.1},
            r"model.norm_epsilon is 1e-06 in that run and 0.1 here.*: set model.norm_epsilon",
        ),
    ],
)
def test_fields_that_change_what_the_arrays_compute_must_be_equal(corpus, tmp_path, overrides, message):
    path, _, _ = save(tmp_path / "run", corpus)
    experiment = make_experiment(fields(corpus, train__init_from=path, **overrides))
    with pytest.raises(ConfigError, match=message) as error:
        check_init_from(experiment)
    assert len(str(error.value).splitlines()) == 1
