"""`python -m train.evaluate --probe=...`: the printed line of every architecture, and what is refused in one line."""

import json
import math
import sys

import numpy as np
import pytest

from contract.errors import ConfigError
from evaluation import __main__ as evaluate
from tests.table import small_config
from tests.train.small_runs import save_random_run
from tests.train.subprocesses import ROOT

RUNS = {  # name -> objective, architecture and config fields
    "clm": ("clm", "decoder_only", {}),
    "fim": ("fim", "decoder_only", {}),
    "ul2": ("ul2", "encoder_decoder", {}),
    "prefix_lm": ("prefix_lm", "decoder_only", {}),
    "bart": ("bart", "encoder_decoder", {}),
    "mlm": ("mlm", "encoder_only", {}),
    "learned": ("mlm", "encoder_only", {"model__positions": "learned"}),
    "diffusion": ("masked_diffusion", "encoder_only", {}),
    "simcse": ("simcse", "encoder_only", {"model__dropout_rate": 0.1, "objective__mlm_weight": 0.0}),
}
LENGTH = ("--length=36",)
PAIRS = [("It is. ", "Is it. ", "x"), ("one two", "two one", "x"), ("abc", "cba", "y"), ("same", "same", "y")]
PAIRS += [("a fox. ", "fox a. ", "x"), ("the cat", "cat the", "x"), ("it was", "was it", "y"), ("of it", "it of", "y")]
PAIRS += [("no one", "one no", "x"), ("up to", "to up", "y")]


@pytest.fixture(scope="module")
def folder(corpus, tmp_path_factory):
    """The runs of RUNS with random parameters, each in a folder with its name, and pairs.jsonl."""
    folder = tmp_path_factory.mktemp("runs")
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    for name, (objective, architecture, fields) in RUNS.items():
        (folder / name).mkdir()
        save_random_run(small_config(objective, architecture, **text, **fields), str(folder / name))
    pairs = [{"good": good, "bad": bad, "group": group} for good, bad, group in PAIRS]
    (folder / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    return folder


@pytest.fixture
def probe(folder, monkeypatch, capsys):
    """(name of RUNS, probe, flags) -> the fields of the printed line."""
    monkeypatch.chdir(ROOT)

    def probe(name, probe, *arguments):
        if probe == "minimal_pairs" and not any(argument.startswith("--path") for argument in arguments):
            arguments = (*arguments, f"--path={folder / 'pairs.jsonl'}")
        arguments = [f"--workdir={folder / name}", *([f"--probe={probe}"] if probe else []), *arguments]
        monkeypatch.setattr(sys, "argv", ["evaluate", *arguments])
        evaluate.main()
        out, err = capsys.readouterr()
        assert "scoring" not in err  # no bar where standard error is no terminal
        [line] = out.splitlines()
        return json.loads(line)

    return probe


def assert_interval(fields, name):
    low, high = fields[f"{name}_interval"]
    assert low <= fields[name] <= high


@pytest.mark.parametrize("name", ["clm", "ul2", "prefix_lm"])
def test_continuation_scores_the_same_tokens_of_the_same_documents_for_every_run(probe, name):
    found = probe(name, "continuation", *LENGTH)
    assert (found["probe"], found["step"], found["documents"], found["windows"]) == ("continuation", 0, 4, 16)
    assert found["tokens"] == found["bytes"] == 16 * 18 and found["unknown_tokens"] == 0
    assert found["bits_per_byte"] == pytest.approx(found["nats_per_byte"] / math.log(2))
    assert found["denoiser"] == {"ul2": "s"}.get(name, name)
    assert found["nats_per_byte_interval"] is found["bits_per_byte_interval"] is None  # four documents
    assert found["interval"].startswith("95%, bootstrap over documents: BCa") and found["resamples"] == 10_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fim", "bart", "mlm", "learned"])
def test_infilling_scores_spans_of_three_lengths(probe, name):
    found = probe(name, "infilling", *LENGTH)
    metric = "masked_nats_per_byte" if name in ("mlm", "learned") else "nats_per_byte"
    assert list(found["spans"]) == ["3", "8", "32"]
    for length, fields in found["spans"].items():
        assert fields["windows"] == 16 and fields["tokens"] == fields["bytes"] == 16 * int(length)
        assert {"nats_per_byte", "masked_nats_per_byte"} & fields.keys() == {metric} and "exact_match" in fields


def test_masked_diffusion_has_the_bound_of_continuations_and_spans(probe):
    """Of a span of one token the bound is the nats of its mask, whatever the draws are."""
    few = ("--length=12", "--num_documents=2")
    found = probe("diffusion", "continuation", *few, "--draws=3")
    assert (found["draws"], found["tokens"]) == (3, 8 * 6) and found["bits_per_byte"] > 0
    spans = probe("diffusion", "infilling", *few, "--spans=1,3", "--draws=2")["spans"]
    assert spans["1"]["nats_per_byte"] == pytest.approx(spans["1"]["masked_nats_per_byte"], rel=1e-5)
    assert spans["3"]["nats_per_byte"] != pytest.approx(spans["3"]["masked_nats_per_byte"], rel=1e-4)
    assert spans["3"]["draws"] == 2 and "draws" not in probe("clm", "continuation", *few)


def test_text_only_is_a_flag_of_the_probes_of_held_out_text(probe):
    few = ("--length=12", "--num_documents=1", "--spans=2")
    found, plain = probe("ul2", "infilling", *few, "--text_only"), probe("ul2", "infilling", *few)
    assert (found["text_only"], plain["text_only"]) == (True, False)
    assert found["spans"]["2"]["nats_per_byte"] < plain["spans"]["2"]["nats_per_byte"]


def test_infilling_counts_hidden_spans_of_whitespace(probe, corpus, tmp_path):
    """The spans of two documents of letters, and of one that has three spaces around each letter."""
    fractions = []
    for name, texts in {"letters": ["abc" * 40, "xyz" * 40], "spaces": ["   a" * 40, "xyz" * 40]}.items():
        (tmp_path / f"{name}.txt").write_text("\n".join(texts * 2))
        arguments = ["--config=tests/small_config.py:fim,decoder_only", f"--config.data.path={tmp_path / name}.txt"]
        arguments += [f"--config.data.cache_dir={corpus / 'cache'}", "--config.data.document_per=line"]
        arguments += ["--config.data.heldout_fraction=0.75", "--config.data.split_by=document"]
        found = probe("fim", "infilling", "--length=12", "--windows_per_document=64", "--spans=1,4", *arguments)[
            "spans"
        ]
        fractions.append([found[length]["whitespace_span_fraction"] for length in ("1", "4")])
    assert fractions[0] == [0.0, 0.0]
    assert 0.1 < fractions[1][0] < 0.9 and fractions[1][1] == 0.0


@pytest.mark.parametrize("unit", ["token", "word"])
def test_pseudo_log_likelihood_scores_every_token_once(probe, unit):
    found = probe(
        "mlm", "pseudo_log_likelihood", "--length=20", "--num_documents=1", "--windows_per_document=2", f"--unit={unit}"
    )
    assert found["tokens"] == 40 and found["unit"] == unit and "nats_per_byte" not in found
    assert found["pseudo_bits_per_byte"] == pytest.approx(found["pseudo_nats_per_byte"] / math.log(2))


SCORES = {
    "clm": ["log_likelihood"],
    "prefix_lm": ["log_likelihood"],
    "ul2": ["log_likelihood", "pseudo_log_likelihood"],
    "mlm": ["pseudo_log_likelihood"],
}


@pytest.mark.parametrize("name", SCORES)
def test_minimal_pairs_have_the_scores_of_the_architecture(probe, name):
    found = probe(name, "minimal_pairs")
    assert [key for key in found if key.endswith("likelihood")] == SCORES[name]
    assert found["pairs"] == 10 and found["tokens"] == found["bytes"] == 114
    for score in SCORES[name]:
        assert found[score]["ties"] == 1 and found[score]["accuracy"] * 10 % 1 == pytest.approx(0.5)
        assert_interval(found[score], "accuracy")
        assert found[score]["floors"] == {"chance": 0.5}
        groups = found[score]["groups"]
        assert {group: fields["pairs"] for group, fields in groups.items()} == {"x": 5, "y": 5}
        assert all(fields["accuracy_interval"] is None for fields in groups.values())  # 5 pairs are too few
        assert np.mean([fields["accuracy"] for fields in groups.values()]) == pytest.approx(found[score]["accuracy"])


def test_a_single_stack_can_be_asked_for_pseudo_log_likelihood(probe):
    assert "pseudo_log_likelihood" not in probe("fim", "minimal_pairs")
    found = probe("fim", "minimal_pairs", "--score=pseudo_log_likelihood")
    assert "log_likelihood" not in found and found["pairs"] == 10 and found["pseudo_log_likelihood"]["unit"] == "token"


def test_a_run_is_asked_in_the_layout_of_another_config(probe, corpus):
    text = [f"--config.data.path={corpus / 'text'}", f"--config.data.cache_dir={corpus / 'cache'}"]
    config = ["--config=tests/small_config.py:fim,decoder_only", *text]
    found = probe("clm", "infilling", *LENGTH, *config)
    assert found["denoiser"] == "fim" and found["config"] == "tests/small_config.py:fim,decoder_only"
    spm = probe("clm", "infilling", *LENGTH, *config, "--config.objective.spm_rate=1.0")
    assert spm["spans"]["8"]["nats_per_byte"] != found["spans"]["8"]["nats_per_byte"]
    pairs = probe("clm", "minimal_pairs", *config, "--score=pseudo_log_likelihood")
    assert pairs["pseudo_log_likelihood"]["denoiser"] == "fim"


REFUSED = {
    "an encoder does not continue": (
        ("mlm", "continuation"),
        "--probe=continuation needs a model that continues a text or is trained on masked diffusion, which "
        "objective.name='mlm' on encoder_only does not train: use --probe=exact_match or --probe=infilling or "
        "--probe=minimal_pairs or "
        "--probe=pseudo_log_likelihood, or another layout",
    ),
    "a causal model sees one side": (
        ("clm", "infilling"),
        "--probe=infilling needs a model that fills in hidden tokens and sees the text on both sides of them, which "
        "objective.name='clm' on decoder_only does not train: use --probe=continuation or --probe=exact_match or "
        "--probe=minimal_pairs",
    ),
    "no language model": (("simcse", "infilling"), "does not train the prediction of tokens"),
    "unknown probe": (
        ("clm", "likelihood"),
        "probe='likelihood' must be continuation, exact_match, infilling, linear, minimal_pairs",
    ),
    "flag without probe": (("clm", "", "--length=8"), "--length needs --probe: add --probe=continuation or"),
    "flag of another probe": (("clm", "continuation", "--path=x"), "unknown --path: choose one of mode, num_documents"),
    "no pairs": (("clm", "minimal_pairs", "--path="), "--path= cannot be read"),
    "length": (("clm", "continuation", "--length=1"), "--length=1 must be from 2 to"),
    "positions": (("learned", "infilling"), "takes 98 positions, special tokens included, and the model has 40"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_probe_cannot_answer_is_refused_in_one_line(probe, case):
    (name, *arguments), message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as error:
        probe(name, *arguments)
    assert "\n" not in str(error.value)
