"""The summary of a run: the text that is held out, and how often the rest is read."""

import re

import pytest

from experiment.experiment import make_experiment
from run.compiled_run import make_run
from tests.table import small_config
from train.display import Display
from train.summary import print_summary

TEXT = "the words of a file of text, which is long enough for a few windows of a row; "


@pytest.fixture
def printed(tmp_path, capsys):
    """What a run on files of text prints, on one line. sizes: of each file, in texts."""

    def summary_of(sizes, config="clm", steps=2, objective=(), **overrides) -> str:
        for k, size in enumerate(sizes):
            (tmp_path / f"{k}.txt").write_text("".join(f"{k} {line}: {TEXT}\n" for line in range(size)))
        fields = small_config(config, "decoder_only", data__source="text", data__path=f"{tmp_path}/*.txt")
        fields["train"]["steps"] = steps
        fields["objective"] |= dict(objective)
        fields["data"] |= {"cache_dir": str(tmp_path / "cache"), **overrides}
        print_summary(make_run(make_experiment(fields), show_progress=False), Display(1, 0), str(tmp_path))
        found = capsys.readouterr()
        return " ".join((found.out + found.err).split())

    return summary_of


def test_the_summary_of_a_run_with_validation_text(printed):
    found = printed([40, 40, 40], heldout="validation")
    assert "1 document to train on, 1 held out for validation; 1 of the test text are not read" in found


def test_the_summary_says_how_often_a_run_reads_its_text(printed, tmp_path):
    """Two steps of 8 rows of 40 tokens, with the EOS of a document; one of two files is held out."""
    found = re.search(r"steps 2: about (\d+) raw tokens, ([\d.]+) epochs of the training text", printed([40, 40]))
    tokens = (tmp_path / "0.txt").stat().st_size + 1  # of both files: "0" or "1" is before each line
    assert found and int(found[1]) <= 2 * 8 * 40 and float(found[2]) == pytest.approx(int(found[1]) / tokens, rel=0.01)


def test_the_epochs_of_a_mixture_are_those_of_its_whole_run(printed):
    """The windows of CLM have 40 tokens, and those of UL2R, which the second half of the steps reads, 34 on average."""
    text = printed([400, 400], "ul2r:clm_then_ul2r", 64, {"begin_step": 32, "end_step": 32})
    found = re.search(r"steps 64: about ([\d,]+) raw tokens", text)
    assert found and int(found[1].replace(",", "")) == pytest.approx(32 * 8 * (40 + 33.6), rel=0.02)
