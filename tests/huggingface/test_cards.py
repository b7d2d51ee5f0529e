"""Exported tokenizers and model cards: the code of every card runs, and its text is what the model was trained with."""

import dataclasses
import re

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import transformers

from configs import architectures
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from huggingface.around_text import around_text, example_prompt, typed_text
from models.heads import bind_classifier
from models.transformer import bind
from run.restore import load_experiment, load_params
from tests.huggingface.exported_runs import CAUSAL, RUNS, run_export, shape, text_fields
from tests.table import small_config
from tests.train.small_runs import save_random_run


@pytest.mark.parametrize("name", RUNS)
def test_the_code_of_the_model_card_runs(exported, monkeypatch, capsys, name):
    _, out = exported(name)
    monkeypatch.chdir(out)
    card = (out / "README.md").read_text()
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    capsys.readouterr()
    exec(code, {})
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("name", "text", "added"),
    [
        ("t5", "The capital of<extra_id_0> is Paris.", "`</s>` after a text"),
        ("gpt2", "The capital of", "`<pad>` before a text"),
        ("span_decoder", "The capital of<extra_id_0> is Paris.", "`<pad>` before and `</s>` after a text"),
        ("ul2_decoder", "[R]The capital of<extra_id_0> is Paris.", "`<pad>` before and `</s>` after a text"),
        ("fim", "<extra_id_0>The capital of<extra_id_1> is Paris.<extra_id_2>", "`<pad>` before a text"),
        ("bart", "The capital of France is Paris.", "`</s>` after a text"),
    ],
)
def test_the_card_writes_what_the_tokenizer_does_not_add(exported, name, text, added):
    run, out = exported(name)
    card = (out / "README.md").read_text()
    assert f'tokenizer("{text}", return_tensors' in card and f"The tokenizer puts {added} by itself" in one_line(card)
    experiment = load_experiment(str(run))
    denoiser = next(row for row in experiment.denoisers if row.objective.prompting is not None)
    prompt = example_prompt(denoiser, experiment)
    begin = [] if experiment.model.has_encoder else [experiment.vocab.pad]
    ids = transformers.AutoTokenizer.from_pretrained(out)(text).input_ids
    assert ids == [*begin, *prompt.inputs, *([] if experiment.model.has_encoder else prompt.targets_start)]


def one_line(text):
    return " ".join(text.split())


def test_the_tokenizer_adds_only_what_every_denoiser_has():
    """A mixture of CLM and span corruption: the text of a prompt says which of the two it is for."""
    mixture = small_config("ul2", "decoder_only", **CAUSAL)
    clm = small_config("clm", "decoder_only")["objective"]
    mixture["objective"]["denoisers"]["s"] = clm | {"mode": "[S]", "weight": 1.0}
    experiment = make_experiment(mixture)
    around = around_text(experiment)
    assert around == ((experiment.vocab.pad,), ())
    texts = [typed_text(row, experiment, around) for row in experiment.denoisers if row.name in ("r1", "s")]
    assert texts == ["[R]The capital of<extra_id_0> is Paris.</s>", "[S]The capital of"]


def test_pairs_of_texts_have_token_types_and_the_same_logits(exported):
    run, out = exported("nsp")
    inputs = transformers.AutoTokenizer.from_pretrained(out)("ab", "cde", return_tensors="pt")
    assert inputs.token_type_ids.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]
    theirs = transformers.AutoModelForPreTraining.from_pretrained(out)(**inputs).seq_relationship_logits
    experiment = load_experiment(str(run))
    params, _ = load_params(experiment, str(run), 0)
    batch = {
        "encoder_input_tokens": inputs.input_ids.numpy(),
        "encoder_segment_ids": np.ones((1, 8), np.int32),
        "encoder_positions": np.arange(8)[None],
        "encoder_token_types": inputs.token_type_ids.numpy(),
    }
    model = dataclasses.replace(experiment.learner.model, dtype="float32")
    hidden = bind(model, params["transformer"]).hidden(batch)
    ours = bind_classifier(model, 2, params["pair_classifier"])(hidden[:, 0])
    np.testing.assert_allclose(theirs.detach().numpy(), ours, atol=1e-5)


def test_electra_has_a_folder_for_each_model(tmp_path, corpus, monkeypatch, capsys):
    electra = text_fields(corpus) | shape(architectures.BERT["base"])
    save_random_run(small_config("electra", "encoder_only", **electra), str(tmp_path / "tanh"))
    with pytest.raises(ConfigError, match=r"model.mlp='gelu': ElectraForMaskedLM of transformers has 'exact_gelu'"):
        run_export(f"--workdir={tmp_path / 'tanh'}", f"--out={tmp_path / 'out'}")
    save_random_run(
        small_config("electra", "encoder_only", **electra | {"model__mlp": "exact_gelu"}), str(tmp_path / "run")
    )
    run_export(f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["discriminator", "generator"]
    for part in ("generator", "discriminator"):
        monkeypatch.chdir(tmp_path / "out" / part)
        card = (tmp_path / "out" / part / "README.md").read_text()
        assert f"\n# electra (encoder-only), {part}\n" in card
        capsys.readouterr()
        exec(re.search(r"```python\n(.*?)```", card, re.DOTALL)[1], {})
        assert capsys.readouterr().out.strip()
