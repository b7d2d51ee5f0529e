"""The lines of standard error while a corpus is prepared."""

from data.store import progress
from data.store.progress import PrepareProgress


def test_a_stage_is_a_line_only_after_the_first_seconds(capsys, monkeypatch):
    shown = PrepareProgress(100, bar=False, lines=True)
    shown.stage("writing the token store")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "_LINE_SECONDS", -1.0)
    shown.stage("writing the token store")
    assert capsys.readouterr().err == "prepare: writing the token store (after 0 s)\n"
