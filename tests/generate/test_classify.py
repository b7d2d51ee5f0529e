"""The classes of new texts: against train.evaluate on the same texts with their labels, and as a command."""

import json
import sys

import numpy as np
import pytest

import cloze
from contract.errors import ConfigError
from generate import __main__ as generate
from tests.table import small_config
from tests.train.small_runs import save_random_run

CLASSES = ("down", "up", "[side]")


def classifier(folder, architecture="encoder_only", pooling="position"):
    """A run with random parameters, and its held-out texts with their labels."""
    texts = [(f"text {k} " + "word " * (k % 4), CLASSES[k % 3]) for k in range(24)]
    for name in ("texts", "heldout"):
        lines = [json.dumps({"text": f"{text} {name}", "label": label}) for text, label in texts]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    config = small_config("classification", architecture)
    config["data"] |= {"source": "jsonl", "path": str(folder / "texts.jsonl"), "cache_dir": str(folder / "cache")}
    config["data"] |= {"heldout_path": str(folder / "heldout.jsonl"), "inputs_length": 48}
    config["objective"] |= {"classes": CLASSES, "pooling": pooling}
    config["train"] |= {"eval_windows": 0}
    save_random_run(config, str(folder / "run"))
    return str(folder / "run"), [(f"{text} heldout", label) for text, label in texts]


@pytest.mark.parametrize(
    ("architecture", "pooling"),
    [("encoder_only", "position"), ("decoder_only", "mean"), ("encoder_decoder", "position")],
)
def test_probabilities_give_the_loss_and_the_accuracy_of_train_evaluate(tmp_path, architecture, pooling):
    run, texts = classifier(tmp_path, architecture, pooling)
    model = cloze.load(run)
    found = model.classify([text for text, _ in texts], batch_size=5)
    assert all(sum(one.probabilities.values()) == pytest.approx(1) for one in found)
    metrics = model.evaluate()
    nats = [-np.log(one.probabilities[label]) for one, (_, label) in zip(found, texts, strict=True)]
    assert np.mean(nats) == pytest.approx(metrics["loss"], rel=1e-5)
    right = [one.label == label for one, (_, label) in zip(found, texts, strict=True)]
    assert np.mean(right) == pytest.approx(metrics["accuracy"])
    assert len({one.label for one in found}) > 1 or len(set(nats)) > 3, "texts differ"
    alone = model.classify(texts[3][0])
    assert alone.probabilities == pytest.approx(found[3].probabilities, rel=1e-5)


def test_the_command_prints_classes_and_names_what_does_not_apply(tmp_path, monkeypatch, capsys):
    run, texts = classifier(tmp_path)

    def printed(*arguments):
        monkeypatch.setattr(sys, "argv", ["generate", f"--workdir={run}", *arguments])
        generate.main()
        return capsys.readouterr().out

    lines = printed(f"--prompt={texts[1][0]}").splitlines()
    assert sorted(line[7:] for line in lines) == sorted(CLASSES)
    shares = [float(line[:5]) for line in lines]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(1, abs=0.002)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text(f"{texts[1][0]}\n{texts[2][0]}\n")
    answers = [json.loads(line) for line in printed(f"--prompts={prompts}").splitlines()]
    assert [answer["prompt"] for answer in answers] == [texts[1][0], texts[2][0]]
    assert set(answers[0]) == {"prompt", "label", "probabilities"} and answers[0]["label"] == lines[0][7:]
    with pytest.raises(ConfigError, match="--temperature does not apply to this run, whose model predicts a class"):
        printed("--prompt=a", "--temperature=1")
    with pytest.raises(ConfigError, match=r"^--prompt has 50 tokens, and a window of 'classification' has 46"):
        printed("--prompt=" + "a" * 50)
    with pytest.raises(ConfigError, match=r"^--prompt is empty: remove it"):
        printed("--prompt=")


def test_a_language_model_has_no_classes():
    with pytest.raises(ConfigError, match=r"^objective.name='clm' predicts no class: use generate$"):
        cloze.new(small_config("clm", "decoder_only")).classify("a")


@pytest.mark.parametrize("batch_size", [0, -3, 1.5, None])
def test_a_batch_of_no_rows_is_refused(batch_size):
    model = cloze.new(small_config("classification", "encoder_only"))
    with pytest.raises(ConfigError, match=f"batch_size={batch_size} must be an integer of at least 1"):
        model.classify(["a"], batch_size=batch_size)
    with pytest.raises(ConfigError, match=f"batch_size={batch_size} must be an integer of at least 1"):
        cloze.new(small_config("clm", "decoder_only")).generate("a", batch_size=batch_size)
