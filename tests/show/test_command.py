"""train.show over the whole table of objectives, on real text, and as a program."""

import io
import re

import numpy as np
import pytest
from rich.console import Console

from data.store.store import open_or_build
from data.windows.split import split_documents
from run.corpus import open_corpora
from show import __main__ as command
from show import examples as show_examples
from show import page as show_page
from show.examples import chunk_numbers, chunks, examples_of
from show.page import make_page, open_page
from show.statistics import STATISTICS
from show.terminal import html_page, print_page, svg_page
from tests.data.corpus import write_texts
from tests.data.tiny_tokenizers import sentencepiece
from tests.in_process import run_here
from tests.show.test_export import parsed
from tests.table import PAIRS, reads_corpus, shares_rows, small_experiment
from tests.train.subprocesses import run_main


@pytest.fixture(autouse=True)
def measure_less(monkeypatch):
    monkeypatch.setattr(show_page, "_MEASURED_POSITIONS", 1 << 17)


def experiment_of(corpus, name, architecture, **overrides):
    text = reads_corpus(name, corpus)
    experiment = small_experiment(name, architecture, **text, **overrides)
    store = open_or_build(experiment.data, experiment.tokenizer, progress=False)
    return experiment, split_documents(store, experiment.data.split)[0]


def printed(page, **options):
    console = Console(file=io.StringIO(), width=80, highlight=False, markup=False, emoji=False, **options)
    print_page(page, console)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("name", "architecture", "examples_per_row"),
    [(*pair, 1 + shares_rows(pair[0])) for pair in PAIRS],
)
def test_every_pair_is_shown(name, architecture, examples_per_row, corpus, monkeypatch):
    """Every denoiser has an example and statistics; batches are valid; every expected statistic is measured."""
    monkeypatch.setattr(show_page, "_MEASURED_POSITIONS", 1 << 14)
    monkeypatch.setattr(show_examples, "_CHUNK_POSITIONS", 1 << 14)
    experiment, documents = experiment_of(corpus, name, architecture, data__examples_per_row=examples_per_row,
                                          data__inputs_length=96, data__targets_length=96)  # fmt: skip
    denoisers = experiment.denoisers
    page = make_page(experiment, documents, title=name, num_examples=len(denoisers) + 1)
    assert page.warnings == list(experiment.warnings) and dict(page.facts)["checked"].endswith("rows")
    examples = [example for row in page.rows for example in row.examples]
    assert [example.number for example in examples] == list(range(1, len(denoisers) + 2))
    assert {example.denoiser for example in examples} == {denoiser.name for denoiser in denoisers}
    assert all(run.text for example in examples for section in example.sections for run in section.runs)
    for denoiser in denoisers:
        assert set(denoiser.objective.expected()) <= set(STATISTICS)
        assert set(denoiser.objective.expected()) <= set(page.statistics[denoiser.name])
    text = printed(page)
    assert all(len(line) <= 80 for line in text.splitlines()) and "\x1b" not in text
    assert text.count("\nexample ") == len(examples) and "\nstatistics of " in text and "█" in text
    assert printed(page, force_terminal=True, color_system="standard").count("\x1b[1mexample ") == len(examples)
    assert "…" not in text.split("\nstatistics of ")[1]
    assert parsed(html_page(page)).count("\nexample ") == len(examples)
    assert len(re.findall(r">example&#160;\d+:", svg_page(page))) == len(examples)


@pytest.mark.parametrize(("name", "architecture"), [("ul2", "encoder_decoder"), ("mlm", "encoder_only")])
def test_statistics_agree_with_the_config_and_show_a_wrong_objective(name, architecture, corpus, monkeypatch):
    experiment, documents = experiment_of(corpus, name, architecture,
                                          data__inputs_length=128, data__targets_length=128)  # fmt: skip
    page = make_page(experiment, documents, title="", num_examples=1)
    tables = page.statistics.items()
    off = {(denoiser, key) for denoiser, table in tables for key, statistic in table.items() if statistic.differs}
    assert off <= {("x3", "span_length")}  # 22 hidden tokens contain no span of 64
    first, rate = experiment.denoisers[0], "corrupted" if name == "ul2" else "selected"
    declared = first.objective.expected()
    monkeypatch.setattr(type(first.objective), "expected", lambda _: declared | {rate: 1.3 * declared[rate]})
    page = make_page(experiment, documents, title="", num_examples=1)
    assert page.statistics[first.name][rate].differs


def test_a_schedule_is_shown_from_its_start_to_its_end(corpus):
    """The rows are from the whole run, although its first rows would suffice."""
    experiment, documents = experiment_of(corpus, "ul2r:clm_then_ul2r", "decoder_only", train__steps=1000,
                                          objective__begin_step=900, objective__end_step=1000)  # fmt: skip
    page = make_page(experiment, documents, title="", num_examples=5)
    shares = ["100.0% → 0.0%", "0.0% → 25.0%", "0.0% → 50.0%", "0.0% → 12.5%", "0.0% → 12.5%"]
    assert [denoiser.name for denoiser in page.denoisers] == ["clm", "r", "s", "x1", "x2"]
    assert [denoiser.share for denoiser in page.denoisers] == shares
    assert "between steps 900 and 1,000" in dict(page.facts)["schedule"] and "0.0% → 25.0%" in printed(page)
    examples = {example.denoiser: row.batch for row in page.rows for example in row.examples}
    assert len(examples) == 5 and all((batch > 900) == (name != "clm") for name, batch in examples.items())
    assert not any(table["share"].differs for table in page.statistics.values())
    # Of two chunks, at the start of the run and across its end.
    assert page.statistics["clm"]["share"].measured == pytest.approx(0.66, abs=0.01)


def test_the_fields_of_a_schedule_are_shown_from_its_start_to_its_end_and_measured_over_its_steps(corpus):
    experiment, documents = experiment_of(corpus, "mlm:decay", "encoder_only", train__steps=1000,
                                          objective__end_step=1000)  # fmt: skip
    page = make_page(experiment, documents, title="", num_examples=5)
    assert page.denoisers[0].fields.startswith("mask_rate=0.3 → 0.15, mask_token_rate=0.8, random_token_rate=0.1, ")
    change = "mlm: linear change of mask_rate between steps 0 and 1,000; held-out examples have the final values"
    assert dict(page.facts)["schedule"] == change
    # Of two chunks, at the start of the run and across its end.
    assert page.statistics["mlm"]["selected"].expected == pytest.approx(0.2127, abs=0.001)
    assert not any(statistic.differs for statistic in page.statistics["mlm"].values())


def test_what_changes_during_a_run_is_measured_over_the_run_and_not_beyond():
    """The default of clm_then_mlm has CLM for half of its 500 batches of 8 rows."""
    run = dict(train__steps=500, train__batch_size=8)
    scheduled = small_experiment("clm_then_mlm", "decoder_only", **run)
    assert chunk_numbers(scheduled, num_chunks=64, chunk_rows=256) == list(range(16))
    assert chunk_numbers(scheduled, num_chunks=4, chunk_rows=256) == [0, 5, 10, 15]
    assert chunk_numbers(scheduled, num_chunks=4, chunk_rows=8000) == [0]
    assert chunk_numbers(small_experiment("clm", "decoder_only", **run), 64, 256) == list(range(64))


def test_phases_are_shown_as_changes_at_once(corpus):
    phases = {"schedule": "phases", "phase_steps": (700, 1000), "phase_mask_rate": (0.2, 0.05)}
    fields = {f"objective__{name}": value for name, value in phases.items()}
    experiment, documents = experiment_of(corpus, "mlm", "encoder_only", train__steps=1000, **fields)
    page = make_page(experiment, documents, title="", num_examples=1)
    assert page.denoisers[0].fields.startswith("mask_rate=0.15 → 0.2 → 0.05, ")
    change = "mlm: change of mask_rate at once, at the steps 700, 1,000; held-out examples have the final values"
    assert dict(page.facts)["schedule"] == change


def test_the_page_has_the_documents_of_both_sides_and_the_warnings_of_a_lossy_tokenizer(tmp_path):
    write_texts(tmp_path, ["a fox 語 jumps over\n"] * 3 + [f"the lazy dog {k}" for k in range(9)])
    lossy = sentencepiece(tmp_path / "m.model", ["the fox jumps over the lazy dog"] * 20, byte_fallback=False)
    text = {"source": "text", "path": str(tmp_path / "text"), "tokenizer": str(lossy), "cache_dir": str(tmp_path)}
    experiment = small_experiment("clm", "decoder_only", **{f"data__{name}": value for name, value in text.items()})
    page, corpora = open_page(experiment, title="", num_examples=1), open_corpora(experiment, show_progress=False)
    counts = f"{len(corpora.train_documents)} documents to train on, {len(corpora.heldout_documents)} held out"
    assert dict(page.facts)["text"] == f"text {tmp_path / 'text'}, {counts}"
    unknown, changed = page.warnings[-2:]
    assert "of the corpus's tokens are unknown" in unknown and changed.startswith("the tokenizer changes texts")


@pytest.mark.parametrize(
    ("name", "shown"),
    [("clm", ""), ("masked_diffusion", ""), ("prefix_lm", ", data.bidirectional_inputs=True")],
)
def test_a_field_without_an_effect_is_not_shown(name, shown, corpus):
    experiment, documents = experiment_of(corpus, name, "decoder_only")
    length = experiment.data.inputs_length
    facts = dict(show_page.experiment_facts(experiment, documents))
    assert facts["architecture"] == f"decoder_only: decoder of {length} positions{shown}"


@pytest.mark.parametrize("is_masked", [False, True])
def test_an_invalid_batch_is_a_warning(is_masked, corpus, monkeypatch):
    experiment, documents = experiment_of(corpus, "clm", "decoder_only")
    dataset, rows = chunks(experiment, documents)
    chunk = dataset[0]
    if is_masked:  # as only rows of masked_inputs may be
        chunk.batch["decoder_input_tokens"][0, 5] = experiment.vocab.mask
    else:  # not shifted
        chunk.batch["decoder_input_tokens"][:] = chunk.batch["decoder_target_tokens"]

    class Repeated:
        num_windows, weights, ramps = dataset.num_windows, dataset.weights, dataset.ramps

        def __getitem__(self, n):
            return chunk

    monkeypatch.setattr(show_page, "chunks", lambda *_: (Repeated(), rows))
    page = make_page(experiment, documents, title="", num_examples=1)
    assert page.warnings == [
        "invalid batch: decoder_input_tokens are not decoder_target_tokens shifted right within segments"
    ]
    assert "WARNING: invalid batch" in printed(page) and "checked" not in dict(page.facts)


@pytest.mark.parametrize(("name", "documents"), [("ul2", "split"), ("clm", "pack")])
def test_rows_are_those_of_training(name, documents, corpus):
    """The rows of chunks are the rows of training's batches, in their order."""
    experiment, texts = experiment_of(corpus, name, "decoder_only", data__documents=documents)
    dataset, chunk_rows = chunks(experiment, texts)
    size = experiment.train.batch_size
    training = experiment.batches(texts)
    for row in (0, 21, chunk_rows + 3):
        chunk = dataset[row // chunk_rows]
        batch = training[row // size]
        for field, values in batch.items():
            np.testing.assert_array_equal(chunk.batch[field][row % chunk_rows], values[row % size])
    page = make_page(experiment, texts, title="", num_examples=40)
    shown = sorted({(row.batch, row.row) for row in page.rows})
    assert shown[:3] == [(0, 0), (0, 1), (0, 2)] and max(row for _, row in shown) == size - 1
    examples, windows = examples_of(dataset[0], experiment.vocab), dataset[0].windows
    assert (examples.denoiser_ids == windows.denoiser_ids).all() and (examples.used <= examples.positions).all()


@pytest.mark.slow
def test_the_program_prints_and_writes(corpus, tmp_path, monkeypatch):
    html, svg = tmp_path / "page.html", tmp_path / "page.svg"
    arguments = ("--config=tests/small_config.py:span_corruption,decoder_only", f"--config.data.path={corpus / 'text'}",
                 f"--config.data.cache_dir={corpus / 'cache'}", "--num_examples=2",
                 f"--html={html}", f"--svg={svg}")  # fmt: skip
    status, out, err = run_main(*arguments, module="train.show")
    assert (status, err) == (0, "")
    assert out.startswith("tests/small_config.py:span_corruption,decoder_only data.") and "example 2:" in out
    assert "example 3:" not in out and out.endswith(f"\nwritten to {html}\n\nwritten to {svg}\n")
    assert "example 2" in parsed(html.read_text(encoding="utf-8"))
    first = svg.read_bytes()
    assert b">example&#160;2:" in first and len(first) < 150_000
    monkeypatch.setenv("COLUMNS", "200")
    assert run_here(command.main, *arguments)[0] == 0 and svg.read_bytes() == first


def test_an_error_is_one_line():
    status, out, err = run_here(command.main, "--config=tests/small_config.py", "--html=/nowhere/x.html")
    assert (status, out) == (1, "")
    assert err == ("error: --html=/nowhere/x.html cannot be written: name a file in an existing folder\n")


def test_the_model_of_another_config_is_in_the_title_and_not_of_a_run():
    config, same_model = "tests/small_config.py:ul2,decoder_only", "--same_model=tests/small_config.py:clm,decoder_only"
    status, out, _ = run_here(command.main, f"--config={config}", same_model, "--text=a text")
    assert status == 0 and out.startswith(f"{config} {same_model}\n")
    status, _, err = run_here(command.main, "--workdir=runs/ul2", same_model)
    assert (status, err) == (1, "error: --workdir and --same_model exclude each other: remove one\n")


def test_a_text_of_ones_own_is_shown_with_each_denoiser_in_turn_and_new_draws():
    config = "--config=tests/small_config.py:ul2,decoder_only"
    status, out, err = run_here(command.main, config, "--text=the quick brown fox jumps", "--num_examples=14")
    assert (status, err) == (0, "")
    examples = re.findall(r"^example (\d+): (.*)$", out, re.MULTILINE)
    names = [name for _, name in examples]
    assert [int(number) for number, _ in examples] == list(range(1, 15))
    assert names[:7] == names[7:] and len(set(names)) == 7
    status, out, _ = run_here(
        command.main, "--config=tests/small_config.py:masked_diffusion,encoder_only", "--text=the quick brown"
    )
    shares = re.findall(r"selected (\d+)", out)
    assert len(shares) == 3 and len(set(shares)) > 1, "another number of tokens is hidden in each draw"


@pytest.mark.parametrize(
    ("config", "text", "message"),
    [
        ("sft,decoder_only", "a", "error: --text does not apply to an objective on prompts and responses: remove it\n"),
        ("clm,decoder_only", "", "error: --text is empty: remove it"),
        ("clm,decoder_only", "ab" * 999, "error: --text has 1999 tokens, and a window of"),
        ("nsp,encoder_only", "a", "error: objective.name='nsp' makes examples of"),
    ],
)
def test_a_text_that_the_objective_does_not_read_is_one_line(config, text, message):
    status, out, err = run_here(command.main, f"--config=tests/small_config.py:{config}", f"--text={text}")
    assert (status, out) == (1, "") and err.startswith(message) and err.count("\n") == 1
