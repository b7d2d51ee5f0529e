"""The summary of a run warns where much more text is held out than data.heldout_fraction."""

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

    def summary_of(sizes, **overrides) -> str:
        for k, size in enumerate(sizes):
            (tmp_path / f"{k}.txt").write_text("".join(f"{k} {line}: {TEXT}\n" for line in range(size)))
        fields = small_config("clm", "decoder_only", data__source="text", data__path=f"{tmp_path}/*.txt")
        fields["data"] |= {"cache_dir": str(tmp_path / "cache"), **overrides}
        print_summary(make_run(make_experiment(fields), show_progress=False), Display(1, 0), str(tmp_path))
        found = capsys.readouterr()
        return " ".join((found.out + found.err).split())

    return summary_of


def test_the_summary_of_a_run_with_validation_text(printed):
    found = printed([40, 40, 40], heldout="validation")
    assert "1 document to train on, 1 held out for validation; 1 of the test text are not read" in found
