"""Tasks: denoisers divided by corpora, the rates that result, and tables that cannot work."""

import json

import numpy as np
import pytest

from configs import base, classification, clm, multitask
from configs.base import corpus as a_corpus
from contract.errors import ConfigError
from data.store.store import open_or_build
from experiment.experiment import make_experiment
from run.corpus import describe_rates, open_corpora
from tests.table import small_experiment
from tests.train.tiny_experiments import OBJECTIVES, PREFIX_LM, SPANS

CORPORA = {"c": a_corpus(source="text", path="c", weight=1.0), "a": a_corpus(source="text", path="a", weight=3.0)}
ROW = {"weight": 1.0, "mode": ""}


def config_of(objective="clm", sources=None, **fields):
    """The config of an objective in OBJECTIVES on the corpora "a" and "c"."""
    config = multitask.get_config().to_dict()
    config["objective"] = OBJECTIVES[objective] if isinstance(objective, str) else objective
    config["model"]["architecture"] = "decoder_only"
    config["data"] |= {"source": "", "sources": CORPORA if sources is None else sources, "rates_maximum": 0}
    config["data"]["rates"] = "weight"
    for name, value in fields.items():
        section, _, field = name.partition("__")
        config[section] = config[section] | {field: value}
    return config


def mixture(rows, **fields):
    return {"name": "mixture", "mix_by": "example", "schedule": "constant", "denoisers": rows} | fields


def test_corpora_keep_their_rates_whatever_the_denoisers_are():
    rows = {
        "r": ROW | SPANS | {"weight": 2.0},
        "s": ROW | PREFIX_LM | {"weight": 6.0, "corpora": ("a",)},
        "x": ROW | SPANS | {"weight": 1.0, "corpora": ["c"]},
    }
    experiment = make_experiment(config_of(mixture(rows)))
    assert [task.name for task in experiment.tasks] == ["r/a", "r/c", "s/a", "x/c"]
    assert [spec.corpus for spec in experiment.window_specs] == [0, 1, 0, 1], "corpora are in the order of their names"
    weights = [spec.weight for spec in experiment.window_specs]
    assert weights == pytest.approx([3 / 4 * 2 / 8, 1 / 4 * 2 / 3, 3 / 4 * 6 / 8, 1 / 4 * 1 / 3])
    assert experiment.denoiser_names == ("r", "s", "x")
    assert experiment.metric_groups == {"r": (0, 1), "s": (2,), "x": (3,), "a": (0, 2), "c": (1, 3)}
    assert experiment.printed_groups == ("r", "s", "x", "a", "c")


def test_a_schedule_of_denoisers_does_not_change_the_rates():
    rows = {
        "r": ROW | SPANS | {"final_weight": 0.0},
        "s": ROW | PREFIX_LM | {"final_weight": 3.0},
        "x": ROW | SPANS | {"final_weight": 1.0, "corpora": ("a",)},
    }
    fields = {"schedule": "linear", "begin_step": 0, "end_step": 100}
    specs = make_experiment(config_of(mixture(rows, **fields))).window_specs
    for values in ([spec.weight for spec in specs], [spec.ramp.weight for spec in specs]):
        assert np.bincount([spec.corpus for spec in specs], values) / sum(values) == pytest.approx([3 / 4, 1 / 4])


def test_a_corpus_has_the_token_store_that_it_has_alone(corpus):
    own = {"source": "text", "path": str(corpus / "text")}
    both = {"t": a_corpus(**own), "p": a_corpus(source="jsonl", path=str(corpus / "pairs.jsonl"))}
    cache = str(corpus / "cache")
    corpora = open_corpora(make_experiment(config_of(sources=both, data__cache_dir=cache)), show_progress=False)
    alone = make_experiment(config_of(sources={}, data__cache_dir=cache, data__source="text", data__path=own["path"]))
    assert [text.name for text in corpora.each] == ["p", "t"]
    assert corpora.each[1].store.folder == open_or_build(alone.data, alone.tokenizer).folder
    [text] = open_corpora(alone, show_progress=False).each
    for side in ("train_documents", "heldout_documents"):
        assert getattr(corpora.each[1], side).index.tolist() == getattr(text, side).index.tolist()


def test_rates_by_the_number_of_documents(corpus):
    both = {
        "t": a_corpus(source="text", path=str(corpus / "text")),
        "p": a_corpus(source="jsonl", path=str(corpus / "pairs.jsonl")),
    }
    fields = {"data__cache_dir": str(corpus / "cache"), "data__rates": "num_examples", "data__rates_maximum": 28}
    experiment = make_experiment(config_of(sources=both, data__rates_temperature=2.0, **fields))
    corpora = open_corpora(experiment, show_progress=False)
    p, t = (len(text.train_documents) for text in corpora.each)
    assert t < 28 < p
    expected = np.sqrt([28, t]) / np.sqrt([28, t]).sum()
    counts = experiment.batches(corpora.train_documents).count_windows(0, 50)
    assert counts.windows / counts.windows.sum() == pytest.approx(expected, abs=0.005)
    heldout = experiment.heldout(corpora.heldout_documents)
    assert heldout.shares == pytest.approx(expected, abs=0.03), "the last window of a corpus is shorter"


SFT = {"name": "sft", "inputs_eos": True}
WRONG = {
    "an unknown corpus in a denoiser": (
        config_of(mixture({"r": ROW | SPANS | {"corpora": ("a", "web")}})),
        r"^objective\.denoisers\.r\.corpora names 'web', which is no corpus: use one of 'a', 'c'$",
    ),
    "a corpus in a denoiser of a run of one corpus": (
        config_of(mixture({"r": ROW | SPANS | {"corpora": ("a",)}}), {}, data__source="stdlib"),
        r"^objective\.denoisers\.r\.corpora names 'a', .*: data\.sources is empty$",
    ),
    "a corpus that no denoiser reads": (
        config_of(mixture({"r": ROW | SPANS | {"corpora": ("a",)}})),
        r"^data\.sources\.c is read by no denoiser: name it in the corpora of one, or remove it",
    ),
    "the name of a denoiser": (
        config_of(mixture({"a": ROW | SPANS})),
        r"^data\.sources\.a has the name of a denoiser, .*: rename the corpus$",
    ),
    "a name that is no metric": (
        config_of(sources={"a/b": CORPORA["a"]}),
        r"^data\.sources names a corpus 'a/b', and the command line has no fields of that name: use letters",
    ),
    "a path of one corpus": (
        config_of(data__path="corpus/"),
        r"^data\.path='corpus/' is not read, because data\.sources names the corpora: set it to '', and",
    ),
    "epochs": (
        config_of(train__epochs=2.0, train__steps=0),
        r"^train\.epochs=2\.0 is passes over one corpus, .*: set train\.steps instead, and train\.epochs=0$",
    ),
    "two units of shares": (
        config_of("ul2", data__mix_by="token"),
        r"^data\.mix_by='token' and objective\.mix_by='example' differ, .*: set both to the same value$",
    ),
    "documents that an objective cannot read": (
        config_of(mixture({"p": ROW | SFT | {"corpora": ("a",)}, "r": ROW | SPANS | {"corpora": ("c",)}})),
        r"^data\.sources\.a\.documents='' and so data\.documents='join' does not go with objective\.denoisers\.p",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_tables_that_cannot_work(case):
    config, message = WRONG[case]
    with pytest.raises(ConfigError, match=message) as error:
        make_experiment(config)
    assert "\n" not in str(error.value)


def test_corpora_that_cannot_be_read(corpus, tmp_path):
    (tmp_path / "copies").mkdir()
    for path in (corpus / "text").glob("*.txt"):
        (tmp_path / "copies" / path.name).write_bytes(path.read_bytes())
    text, whole = a_corpus(source="text", path=str(corpus / "text")), {"documents": "whole"}
    rows = {"p": ROW | SFT | {"corpora": ("a",)}, "r": ROW | SPANS | {"corpora": ("c",)}}
    for sources, objective, message in (
        ({"a": text, "c": a_corpus(source="text", path="no/such")}, "clm", r"^corpus 'c': data\.sources\.c\.path"),
        (
            {"a": text, "c": text | {"path": str(tmp_path / "copies")}},
            "clm",
            r"data\.sources\.c are the same documents",
        ),
        (
            {"a": text | whole, "c": text | {"path": str(tmp_path / "copies" / "a*.txt")}},
            mixture(rows),
            r"^corpus 'a': 'p/a' learns responses to prompts, .*: set data\.sources\.a\.source",
        ),
    ):
        experiment = make_experiment(config_of(objective, sources, data__cache_dir=str(corpus / "cache")))
        with pytest.raises(ConfigError, match=message):
            open_corpora(experiment, show_progress=False)


def test_a_text_needs_a_denoiser_where_the_shares_depend_on_the_corpora():
    from run.texts import text_windows

    rows = {"r": ROW | SPANS | {"corpora": ("a",)}, "s": ROW | PREFIX_LM | {"corpora": ("c",)}}
    experiment = make_experiment(config_of(mixture(rows), data__rates="num_examples"))
    with pytest.raises(ConfigError, match=r"^denoiser=None must be one of 'r', 's': with data\.rates='num_examples'"):
        text_windows(experiment, ["a text"])
    assert text_windows(experiment, ["a text"], denoiser="s").windows.denoiser_ids.tolist() == [1]
    by_weight = make_experiment(config_of(mixture(rows)))
    drawn = text_windows(by_weight, [f"text {k}" for k in range(400)]).denoiser_ids
    assert np.mean(drawn == 0) == pytest.approx(3 / 4, abs=0.07)


def test_texts_are_drawn_with_the_shares_of_the_tokens():
    """Of equal shares of the tokens, shorter windows are drawn more often."""
    from run.texts import text_windows

    experiment = small_experiment("ul2", "encoder_decoder", objective__mix_by="token")
    lengths = np.array([spec.raw_length for spec in experiment.window_specs])
    assert lengths.max() > 1.3 * lengths.min()
    drawn = text_windows(experiment, [f"text {k}" for k in range(4000)]).denoiser_ids
    expected = (1 / lengths) / (1 / lengths).sum()
    np.testing.assert_allclose(np.bincount(drawn, minlength=7) / 4000, expected, atol=4 * (1 / 7 / 4000) ** 0.5)


def test_a_classifier_reads_corpora_that_each_hold_some_of_the_classes(tmp_path):
    for label in ("water", "food"):
        lines = [json.dumps({"text": f"{label} is text {k}", "label": label}) for k in range(20)]
        (tmp_path / f"{label}.jsonl").write_text("\n".join(lines))
    table = {
        label: a_corpus(source="jsonl", path=str(tmp_path / f"{label}.jsonl"), documents="split")
        for label in ("water", "food")
    }
    fields = {"data__cache_dir": str(tmp_path / "cache"), "model__architecture": "encoder_only"}
    objective = {**classification.get_config().objective.to_dict(), "classes": ("water", "food")}
    experiment = make_experiment(config_of(objective, table, **fields))
    documents = open_corpora(experiment, show_progress=False).train_documents
    windows = experiment.batches(documents, transform=lambda windows, _: windows)[0]
    assert windows.labels.tolist() == (1 - windows.denoiser_ids).tolist(), "the corpora are in the order of their names"
    wrong = make_experiment(
        config_of(objective | {"classes": ("water", "air")}, table, data__on_unusable="skip", **fields)
    )
    with pytest.raises(ConfigError, match="food"):
        open_corpora(wrong, show_progress=False)


@pytest.mark.parametrize("name", ["my-web", "0", "items", "get", ""])
def test_names_of_corpora_that_the_command_line_cannot_address(name):
    config = clm.get_config()
    base.use_corpora(config, {name: CORPORA["a"], "c": CORPORA["c"]})
    with pytest.raises(ConfigError, match=rf"^data\.sources names a corpus '{name}', .*: use letters"):
        make_experiment(config.to_dict())


@pytest.mark.parametrize("rates", ["num_examples", "weight"])
def test_rates_of_whole_documents_are_shares_of_examples_and_not_of_rows(rates, tmp_path):
    """T5 mixes examples and packs them afterwards: rows with many short pairs count as many examples."""
    for name, words, count in (("short", 3, 300), ("long", 30, 200)):
        pairs = [
            {"prompt": f"{name} {k}", "response": " ".join(f"w{k * j}" for j in range(words))} for k in range(count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    table = {
        name: a_corpus(source="jsonl", path=str(tmp_path / f"{name}.jsonl"), documents="whole", weight=weight)
        for name, weight in (("long", 2.0), ("short", 1.0))
    }
    fields = {"data__inputs_length": 256, "data__targets_length": 256, "data__cache_dir": str(tmp_path / "cache")}
    experiment = make_experiment(config_of(SFT, table, data__rates=rates, **fields))
    corpora = open_corpora(experiment, show_progress=False)
    counts = experiment.batches(corpora.train_documents).count_windows(0, 100)
    weights = np.multiply([2.0, 1.0], [len(text.train_documents) for text in corpora.each] if rates != "weight" else 1)
    assert counts.examples / counts.examples.sum() == pytest.approx(weights / weights.sum(), rel=0.01)
    assert counts.windows[0] > 2 * counts.windows[1], "rows of short pairs hold more of them"
    assert f"long {weights[0] / weights.sum():.2%}, short" in describe_rates(experiment.data, corpora.factors)
    heldout = experiment.heldout(corpora.heldout_documents)
    lengths = [text.heldout_documents.ends(False)[-1] / len(text.heldout_documents) for text in corpora.each]
    assert heldout.shares == pytest.approx(weights * lengths / (weights @ lengths), abs=0.05)
