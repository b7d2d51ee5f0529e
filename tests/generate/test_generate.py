"""The command `python -m train.generate`, and the sample that a run prints at its end."""

import sys

import jax
import numpy as np
import pytest

from contract.errors import ConfigError
from generate import __main__ as generate
from generate import sample
from generate.prompts import prompt_batch, read_prompt
from generate.sampling import Answer
from generate.texts import most_tokens
from objectives.prompting import replace_sentinels, spans_by_sentinel
from run.compiled_run import make_run
from tests.generate.test_prompts import BART, FIM
from tests.train.tiny_experiments import random_params, tiny_experiment


def run_command(monkeypatch, capsys, workdir, prompt, *arguments):
    """What the command prints to standard output, and to standard error."""
    monkeypatch.setattr(sys, "argv", ["generate", f"--workdir={workdir}", f"--prompt={prompt}", *arguments])
    generate.main()
    out, err = capsys.readouterr()
    return out, err


@pytest.mark.slow
def test_the_command_fills_in_spans_the_same_way_for_the_same_seed(workdirs, monkeypatch, capsys):
    arguments = ("--max_tokens=12", "--num_samples=3", "--temperature=1.5")
    out, err = run_command(monkeypatch, capsys, workdirs["ul2"], "ab<extra_id_0>cd", *arguments)
    samples = out.split("--- sample ")[1:]
    assert [printed[:6] for printed in samples] == ["1 of 3", "2 of 3", "3 of 3"]
    for printed in samples:
        answer, text = printed.split("answer: ")[1].split("\ntext: ")
        assert text.startswith("ab") and text.endswith("cd\n")
        assert ("<extra_id_0>" in text) == ("<extra_id_0>" not in answer)
    assert len({printed[6:] for printed in samples}) == 3
    assert run_command(monkeypatch, capsys, workdirs["ul2"], "ab<extra_id_0>cd", *arguments) == (out, err)
    other, _ = run_command(monkeypatch, capsys, workdirs["ul2"], "ab<extra_id_0>cd", *arguments, "--seed=1")
    assert other != out


def test_the_command_continues_a_prompt(workdirs, monkeypatch, capsys):
    out, err = run_command(monkeypatch, capsys, workdirs["clm"], "a b", "--temperature=0", "--max_tokens=4")
    assert out.startswith("a b") and out.endswith("\n") and len(out) > 4
    assert err in ("", "note: sample 1 did not end within --max_tokens=4\n")


def test_the_command_fills_masks(workdirs, monkeypatch, capsys):
    out, _ = run_command(monkeypatch, capsys, workdirs["mlm"], "a[MASK]b[MASK]")
    first, second, text = out.splitlines()
    assert first.startswith("mask 1: '") and second.startswith("mask 2: '") and first.count("0.") == 5
    assert text.startswith("text: a") and "[MASK]" not in text


INVALID_COMMANDS = {
    "temperature": ("clm", "a", ["--temperature=-1"], "--temperature=-1.0 must be 0"),
    "top_p 0": ("clm", "a", ["--top_p=0"], "--top_p=0.0 must be above 0"),
    "greedy samples": ("clm", "a", ["--num_samples=2", "--temperature=0"], "all the same"),
    "learned positions": ("clm", "abc", ["--max_tokens=46"], "48 learned positions.*set --max_tokens=45 or less"),
    "step": ("clm", "a", ["--step=7"], "no checkpoint of step 7"),
    "remask 1": ("mlm", "a[MASK]", ["--remask=1"], "--remask=1.0 must be 0 or more, and below 1"),
    "one step in all": ("mlm", "a[MASK]", ["--order=once", "--steps=4"], "all masks in one step: remove --steps"),
    "remask of one step": ("mlm", "a[MASK]", ["--steps=1", "--remask=0.5"], "--remask has no effect with --steps=1"),
    "blocks of a continuation": ("clm", "a", ["--block_length=4"], "--block_length does not apply.*remove it"),
    "no mask": ("mlm", "a", [], r"--prompt has no \[MASK\]"),
    "too long for masks": ("mlm", "[MASK]" * 47, [], "has 49 tokens.*data.inputs_length=48"),
}


@pytest.mark.parametrize(
    ("objective", "prompt", "arguments", "message"), INVALID_COMMANDS.values(), ids=INVALID_COMMANDS
)
def test_invalid_commands_raise_one_line(workdirs, monkeypatch, capsys, objective, prompt, arguments, message):
    with pytest.raises(ConfigError, match=message) as error:
        run_command(monkeypatch, capsys, workdirs[objective], prompt, *arguments)
    assert "\n" not in str(error.value)


def test_answers_longer_than_training_rows_give_a_note():
    experiment = tiny_experiment("clm", "decoder_only", model={"positions": "rope"})
    prompt, _ = read_prompt(experiment, "abc", None)
    assert most_tokens(experiment, prompt, None) == (45, [])
    assert most_tokens(experiment, prompt, 45) == (45, [])
    assert most_tokens(experiment, prompt, 50) == (
        50,
        ["with --max_tokens=50 a row can be 5 tokens longer than in training (48)"],
    )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Fields of config.data for a corpus of twenty files, each a lower-case letter followed by numbers."""
    folder, cache = tmp_path_factory.mktemp("corpus"), tmp_path_factory.mktemp("cache")
    for letter in "abcdefghijklmnopqrst":
        (folder / f"{letter}.txt").write_text(letter + "".join(f" {n}" for n in range(100)))
    return {"source": "text", "path": str(folder), "heldout_fraction": 0.2, "cache_dir": str(cache)}


SAMPLES = [
    ("ul2", "encoder_decoder"),
    ("clm", "decoder_only"),
    ("prefix_lm", "decoder_only"),
    ("mlm", "encoder_only"),
    (FIM, "decoder_only"),
    (BART, "encoder_decoder"),
]


@pytest.mark.parametrize(("objective", "architecture"), SAMPLES)
def test_a_sample_shows_prompt_answer_and_true_text(corpus, monkeypatch, objective, architecture):
    experiment = tiny_experiment(
        objective, architecture, data=corpus | ({"documents": "split"} if objective == FIM else {})
    )
    run = make_run(experiment, show_progress=False)

    def answer(_, params, requests, sampling, *, num_samples, seed):
        [(prompt, max_tokens)] = requests
        batch = prompt_batch(experiment, [prompt])  # raises if the prompt does not fit
        assert batch["decoder_input_tokens"].shape[0] == 1 and 0 < max_tokens <= 48 and num_samples == 1
        yield [Answer(np.array([3 + ord("!")] * 3 + [3 + 27], np.int32), True)]

    monkeypatch.setattr(sample, "generate_answers", answer)
    header, *rest = sample.sample_for_display(run, {"transformer": random_params(experiment)}).splitlines()
    lines = {line[:6].strip(): line[8:] for line in rest}
    assert header.startswith("a sample (") and ".txt" in header
    assert list(lines) == ["prompt", "model", "truth"] and all(line.startswith("| ") for line in lines.values())
    prompt, model, truth = (line[2:] for line in lines.values())
    document = prompt[0] + "".join(f" {n}" for n in range(100))
    if objective == "mlm":
        assert "[MASK]" in prompt and "[MASK]" not in model and document.startswith(truth)
    elif objective == BART:
        assert "[MASK]" in prompt and model == "!!!\\x1b" and document.startswith(truth) and len(truth) > 40
    else:
        assert model == "!!!\\x1b"
        vocab, decode = experiment.vocab, experiment.tokenizer.decode
        prompt_ids, truth_ids = map(experiment.tokenizer.encode_with_specials, (prompt, truth))
        spans = {0: truth_ids} if objective == FIM else spans_by_sentinel(truth_ids, vocab)
        has_sentinels = "<extra" in prompt
        text = replace_sentinels(prompt_ids, spans, vocab) if has_sentinels else np.append(prompt_ids, truth_ids)
        assert len(text) > 8 and document.startswith(decode(text))
        assert prompt.count("<extra_id") in ((1, 2) if has_sentinels else (0,))


def test_a_model_that_overflows_has_no_sample_and_its_run_ends(corpus):
    run = make_run(tiny_experiment("mlm", "encoder_only", data=corpus), show_progress=False)
    params = jax.tree.map(lambda leaf: leaf * np.nan, random_params(run.experiment))
    found = sample.sample_for_display(run, {"transformer": params})
    assert found.startswith("no sample: the model's logits are not finite")
