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


def test_a_corpus_of_two_files_holds_out_one_of_them(printed):
    found = printed([40, 40])
    assert "1 document to train on, 1 held out" in found
    assert (
        "50.0% of the tokens are held out, and data.heldout_fraction=0.1 is the share of different files on average, "
        "of which there are few or some are large: to train on more, set data.document_per='line' or 'paragraph' with "
        "data.split_by='document', another data.split_seed, or held-out text of its own (heldout_path)"
    ) in found
    assert "to train on more, set data.split_by='document', another" in printed([40, 40], document_per="line")


def test_documents_that_are_split_one_by_one_have_no_other_unit(printed):
    found = printed([2, 2], document_per="line", split_by="document", heldout_fraction=0.01)
    assert "25.0% of the tokens are held out" in found and "on more, set another data.split_seed" in found


@pytest.mark.parametrize("changes", [{"heldout_fraction": 0.3}, {"split_by": "document", "document_per": "line"}])
def test_a_share_as_set_has_no_warning(printed, changes):
    assert "of the tokens are held out" not in printed([40, 40], **changes)


def test_the_summary_of_a_run_with_validation_text(printed):
    found = printed([40, 40, 40], heldout="validation")
    assert "1 document to train on, 1 held out for validation; 1 of the test text are not read" in found
