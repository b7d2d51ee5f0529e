"""What the plan of a study says of the texts that its measures score: windows, documents, tokenizers and corpora."""

import re
import shutil

import pytest

from command.flags import resolve
from configs.studies.base import heldout_loss, probe, raw_tokens, variant
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from studies import measures
from studies.analysis import objectives_differ
from studies.planning import make_plan
from studies.results import StudyFolder
from tests.data.tiny_tokenizers import sentencepiece
from tests.studies.studies import ALLOWED, SMALL, on, small_study
from tests.train.small_runs import save_random_run


def test_windows_of_other_lengths_are_said_of_bits_per_byte_alone(corpus):
    def warnings(length, metric="bits_per_byte"):
        changes = dict(baseline="clm", budget=raw_tokens(2560), measures={"value": heldout_loss(metric=metric)})
        blocks = variant({"data.inputs_length": length}, config="configs/block_diffusion.py")
        variants = {"clm": variant(), "blocks": blocks}
        plan = make_plan(small_study(corpus, variants=variants, **changes), {})
        return [line for line in plan.warnings if "windows" in line]

    assert warnings(64) == warnings(32, "loss") == []  # half of a row of block diffusion is a clean copy
    (line,) = warnings(32)
    assert "windows (clm 32 tokens (pack), blocks 16 tokens (pack)), and longer ones lower value by themselves" in line


def test_other_text_of_each_variant_is_said_before_anything_runs(corpus):
    """Both hold out the same files, and score other documents of them."""
    measures = {"loss": heldout_loss(), "under": heldout_loss(config="configs/clm.py"), "mine": heldout_loss()}
    measures["mine"] = heldout_loss(config="configs/clm.py", overrides={"data.document_per": "file"})
    variants = {"slow": variant(), "fast": variant({"data.document_per": "paragraph"})}
    plan = make_plan(small_study(corpus, variants=variants, measures=measures), {})
    assert plan.variants["slow"].heldout_digest == plan.variants["fast"].heldout_digest
    [said] = [line for line in plan.warnings if "different text" in line]
    assert "differ in data.document_per are scored on different text by loss, under: no verdict unless" in said


def test_training_text_of_a_variant_that_a_measure_scores_is_said(corpus, tmp_path):
    """Before, only train.evaluate said it, and more training text was better on itself."""
    for number, text in enumerate(sorted((corpus / "text").iterdir())):
        folder = tmp_path / ("code", "prose", "test")[number % 3]
        folder.mkdir(exist_ok=True)
        shutil.copy(text, folder)
    code, prose, test = (str(tmp_path / name) for name in ("code", "prose", "test"))
    variants = {"slow": variant({"data.path": code}), "fast": variant({"data.path": f"{code},{prose}"})}
    on_prose = {"data.path": prose, "data.heldout_path": "", "data.inputs_length": 32, "data.split_by": "document"}
    measures = {
        "loss": heldout_loss(config="configs/prefix_lm.py"),
        "on_prose": heldout_loss(config="configs/clm.py", overrides=on_prose),
        "continuation": probe("continuation", "bits_per_byte", config="configs/clm.py", overrides=on_prose),
    }
    overrides = SMALL | on(corpus) | {"data.heldout_path": test}
    plan = make_plan(small_study(corpus, variants=variants, measures=measures, overrides=overrides), {})
    said = [re.sub(r"\d+", "N", line) for line in plan.warnings if "training text" in line]
    assert said == [
        f"N of N documents on which {name} scores fast are its training text" for name in ("on_prose", "continuation")
    ]


def test_two_copies_of_a_tokenizer_are_one_and_two_tokenizers_are_not(corpus, tmp_path):
    """A start brings its own: before, losses of tokens of two vocabularies had a verdict."""
    tokenizers = {"a": sentencepiece(tmp_path / "a.model"), "c": sentencepiece(tmp_path / "c.model", vocab_size=320)}
    tokenizers["b"] = str(shutil.copy(tokenizers["a"], tmp_path / "b.model"))
    for name, path in tokenizers.items():
        fields = resolve("configs/clm.py", SMALL | on(corpus) | {"data.tokenizer": path}, "")
        save_random_run(fields, str(tmp_path / name))
    for names, differ in (("ab", False), ("ac", True)):
        variants = {name: variant({"train.init_from": str(tmp_path / name)}) for name in names}
        changes = {"variants": variants, "baseline": "a", "overrides": SMALL | on(corpus) | ALLOWED}
        plan = make_plan(small_study(corpus, **changes), {})
        assert any("data.tokenizer are scored on different text by loss" in line for line in plan.warnings) == differ
        StudyFolder(tmp_path / names).begin(plan, {})
        results = StudyFolder(tmp_path / names).results(plan, "", {})
        assert objectives_differ(results, names) == differ


def test_a_measure_scores_the_corpora_of_the_runs(corpus):
    """The paths of data.sources are those of the measure's config, unlike data.path."""
    path = {"data.sources.text.source": "text", "data.sources.text.path": str(corpus / "text")}
    trained = make_experiment(resolve("configs/multitask.py:tiny", path, ""))
    assert measures._scored_under("configs/multitask.py:tiny", path, trained).data == trained.data
    for config, has in (("configs/multitask.py:tiny", "'stdlib'"), ("configs/clm.py", "of one text")):
        with pytest.raises(ConfigError, match=rf"{config}' has the corpora .*{has}.* and the runs read "):
            measures._scored_under(config, {}, trained)
