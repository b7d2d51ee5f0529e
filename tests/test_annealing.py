"""data.attention_annealing_steps: a causal decoder comes to be read in both directions, edge by edge."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from contract.batch import check_batch
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from models.attention import attention_mask
from models.transformer import apply, bind
from run.compiled_run import make_run
from run.texts import batch_of, text_windows
from tests.models import tiny
from tests.small_fields import small_config

STEPS = 8


def fields(corpus, name="hybrid:mntp", **overrides):
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    annealing = {"data__attention_annealing_steps": STEPS, "data__documents": "join"}
    return small_config(name, "decoder_only", **(text | annealing | overrides))


@pytest.fixture(scope="module")
def run(corpus):
    return make_run(make_experiment(fields(corpus)), show_progress=False)


@functools.partial(jax.jit, static_argnums=0)
def _mask(config, batch):
    model = bind(config, tiny.params(config))
    return model.decoder_attention(batch).attention_fn.keywords["mask_Bx1xQxS"][:, 0]


def mask_of(run, batch):
    """bool [B, Q, S]: the mask that the model reads a batch with."""
    return np.asarray(_mask(run.experiment.model, batch))


def future(mask):
    """bool [B, edges]: the edges from a position to a later one."""
    return mask[:, *np.triu_indices(mask.shape[1], 1)]


def test_the_share_of_open_edges_follows_the_steps_and_all_rows_have_the_same(run):
    masks = []
    for step in range(STEPS + 2):
        batch = run.train_dataset[step]
        check_batch(batch, "decoder_only")
        masks.append(mask_of(run, batch))
        past = np.tril(np.ones(masks[-1].shape[1:], bool))
        assert masks[-1][:, past].all() and (masks[-1] == masks[-1][:1]).all()
    edges = np.array([future(mask)[0] for mask in masks])
    assert not edges[0].any() and edges[STEPS:].all()
    n = edges.shape[1]
    for step in range(1, STEPS):
        share = step / STEPS
        assert abs(edges[step].mean() - share) < 5 * np.sqrt(share * (1 - share) / n)
    # Each step draws anew: of the edges that are open at one step, about the share of the next is open there.
    assert abs(edges[5][edges[4]].mean() - 5 / STEPS) < 5 * np.sqrt(0.25 / edges[4].sum())


def test_the_first_step_has_the_causal_decoders_logits_bit_for_bit_and_the_last_those_of_both_directions(run):
    model = run.experiment.model
    causal = make_experiment(small_config("clm", "decoder_only", data__documents="join")).model
    assert model.has_prefix and not causal.has_prefix
    params, annealed = tiny.params(causal), jax.jit(lambda params, batch: apply(model, params, batch))
    first, last = run.train_dataset[0], run.train_dataset[STEPS]
    plain = {name: array for name, array in last.items() if not name.startswith("decoder_annealing")}
    np.testing.assert_array_equal(annealed(params, first), jax.jit(lambda p, b: apply(causal, p, b))(params, first))
    np.testing.assert_array_equal(annealed(params, last), annealed(params, plain))


def test_a_run_that_resumes_and_one_of_several_processes_open_the_same_edges(run):
    fields_of = [run.train_dataset[step] for step in range(6)]
    resumed = next(run.train_batches(4))
    process = run.experiment.batches(run.corpora.train_documents, local_rows=[1, 6])[4]
    for name in ("decoder_annealing_key", "decoder_annealing_share"):
        values = np.stack([batch[name] for batch in fields_of])
        assert (values == values[:, :1]).all() and len(set(values[:, 0])) == 6
        np.testing.assert_array_equal(resumed[name], values[4])
        np.testing.assert_array_equal(process[name], values[4, [1, 6]])
    other = make_experiment(run.experiment.config | {"seed": 1}).batches(run.corpora.train_documents)[4]
    assert (other["decoder_annealing_key"] != fields_of[4]["decoder_annealing_key"]).all()


def test_evaluations_read_in_both_directions(run):
    batch = run.heldout.batches[0]
    assert not any(name.startswith("decoder_annealing") for name in batch)


def test_given_texts_are_read_in_both_directions(run):
    windows, _, _ = text_windows(run.experiment, ["def f(x): return x"])
    for batch in (run.experiment.heldout_collate(windows, 1), batch_of(run.experiment, windows)):
        assert not any(name.startswith("decoder_annealing") for name in batch)
        assert future(mask_of(run, batch)).any()


def test_causal_rows_of_a_mixture_stay_causal(corpus):
    run = make_run(make_experiment(fields(corpus, "hybrid")), show_progress=False)
    batch = run.train_dataset[STEPS // 2]
    causal = ~batch["decoder_bidirectional_mask"].any(axis=1)
    edges = future(mask_of(run, batch))
    assert causal.any() and not edges[causal].any() and edges[~causal].any(axis=1).all()


def test_a_prefix_for_some_queries_alone():
    segments, open_edges = jnp.ones((1, 3), jnp.int32), jnp.asarray([[[0, 0, 1], [0, 0, 0], [0, 0, 0]]], bool)
    found = attention_mask(segments, segments, causal=True, bidirectional_mask=open_edges)
    assert np.asarray(found)[0, 0].astype(int).tolist() == [[1, 0, 1], [1, 1, 0], [1, 1, 1]]


def test_a_run_that_ends_before_all_edges_are_open_is_warned(corpus):
    [line] = make_experiment(fields(corpus, data__attention_annealing_steps=3)).warnings
    assert line.startswith("data.attention_annealing_steps=3 is above train.steps=2: the run ends before")
    assert make_experiment(fields(corpus, data__attention_annealing_steps=2)).warnings == ()


@pytest.mark.parametrize(
    ("name", "architecture", "message"),
    [
        ("clm", "decoder_only", "has no effect, because this objective reads every row causally: set it to 0"),
        ("mlm", "encoder_only", "needs model.architecture='decoder_only', not 'encoder_only': set it to 0"),
        ("ul2", "encoder_decoder", "needs model.architecture='decoder_only', not 'encoder_decoder': set it to 0"),
    ],
)
def test_where_nothing_opens_annealing_is_refused(name, architecture, message):
    with pytest.raises(ConfigError, match=rf"data.attention_annealing_steps=5 {message}"):
        make_experiment(small_config(name, architecture, data__attention_annealing_steps=5))
