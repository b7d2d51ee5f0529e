"""A run does not start from a run that trained on its held-out text."""

import pytest

from contract.errors import ConfigError
from tests.table import small_config
from train.experiment import make_experiment
from train.overlap import check_start, describe_trained_on
from train.restore import load_experiment
from train.run import make_run
from train.run_config import read_config, write_config


def fields(corpus, name="clm", architecture="decoder_only", **overrides):
    text = {"data__source": "text", "data__path": str(corpus / "text"), "data__cache_dir": str(corpus / "cache")}
    return small_config(name, architecture, **(text | {"data__heldout_fraction": 0.3} | overrides))


def run_of(corpus, **overrides):
    return make_run(make_experiment(fields(corpus, **overrides)), show_progress=False)


def write_run(workdir, run):
    write_config(workdir, run.experiment.config | {"corpus": {"fingerprint": run.corpora.content_digest}})


@pytest.fixture
def clm(corpus, tmp_path):
    """The workdir of a run with 0.3 of the files held out."""
    write_run(tmp_path / "clm", run_of(corpus))
    return str(tmp_path / "clm")


def test_the_same_split_however_the_text_is_cut_and_whatever_is_trained(corpus, clm):
    for overrides in (
        {},
        {"seed": 5},
        {"name": "mlm", "architecture": "encoder_only"},
        {"data__document_per": "line"},
        {"data__document_per": "paragraph", "data__heldout_fraction": 0.1},
    ):
        assert check_start(run_of(corpus, train__init_from=clm, **overrides)) == []


@pytest.mark.parametrize(
    "overrides",
    [{"data__split_seed": 1}, {"data__heldout_fraction": 0.6}, {"data__document_per": "line", "data__split_seed": 1}],
)
def test_training_text_that_is_held_out_here_is_refused_with_its_number(corpus, clm, overrides):
    run = run_of(corpus, train__init_from=clm, **overrides)
    trained = {run_of(corpus).train_documents.name(i) for i in range(len(run_of(corpus).train_documents))}
    heldout = [run.heldout_documents.name(i) for i in range(len(run.heldout_documents))]
    found = f"{sum(name in trained for name in heldout)} of {len(heldout):,} held-out documents are training text of"
    assert sum(name in trained for name in heldout) > 0
    with pytest.raises(ConfigError, match=rf"train\.init_from={clm}: {found} {clm}: set the fields") as error:
        check_start(run)
    assert "train.init_from_overlap='allow'" in str(error.value) and "\n" not in str(error.value)
    allowed = run_of(corpus, train__init_from=clm, train__init_from_overlap="allow", **overrides)
    assert check_start(allowed) == [f"{found} {clm}"]


def test_the_starts_of_the_start_count_too(corpus, clm, tmp_path):
    write_run(tmp_path / "second", run_of(corpus, train__init_from=clm, data__split_seed=1))
    with pytest.raises(ConfigError, match=f"are training text of {clm}"):
        check_start(run_of(corpus, train__init_from=str(tmp_path / "second"), data__split_seed=1))


def test_the_same_lines_and_paragraphs_twice(corpus, tmp_path):
    """Equal lines of files on both sides are no reason to refuse the same config."""
    for document_per in ("line", "paragraph"):
        write_run(tmp_path / document_per, run_of(corpus, data__document_per=document_per))
        start = str(tmp_path / document_per)
        assert check_start(run_of(corpus, data__document_per=document_per, train__init_from=start)) == []


def test_text_that_cannot_be_compared_is_noted(corpus, clm, tmp_path):
    config = read_config(clm)
    write_config(clm, config | {"data": config["data"] | {"path": str(tmp_path / "elsewhere")}})
    [note] = check_start(run_of(corpus, train__init_from=clm))
    assert f"cannot be compared with all training text of {clm}: its corpus cannot be read here" in note
    write_config(clm, config | {"corpus": {"fingerprint": "of other text"}})
    [note] = check_start(run_of(corpus, train__init_from=clm))
    assert note.endswith(f"all training text of {clm}: its corpus has changed since")


def test_notes_on_scored_text(corpus, clm):
    trained = load_experiment(clm)
    assert describe_trained_on(trained, clm, run_of(corpus)) == []
    [note] = describe_trained_on(trained, clm, run_of(corpus, data__split_seed=1))
    assert note.endswith("held-out documents are training text of the run")
