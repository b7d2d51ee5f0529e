"""Imported decoders start with the token of their folder: `transformers` gives the same log-likelihoods and text."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import torch
import transformers

import cloze
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from huggingface.importing import open_model
from tests.huggingface.hub_folders import change_config, make_hub_folder
from tests.table import small_config
from train.init_from import open_origin, plan_start

NEW = 12


def add_bos_before_texts(folder):
    """Makes the tokenizer put <s> before each text, as Llama's does."""
    path = folder / "tokenizer.json"
    contents = json.loads(path.read_text())
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    bos = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    contents["post_processor"] = {
        "type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": bos
    }  # fmt: skip
    path.write_text(json.dumps(contents))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = make_hub_folder(tmp_path_factory.mktemp("llama") / "hub", "llama")
    add_bos_before_texts(folder)
    return folder


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    return make_hub_folder(tmp_path_factory.mktemp("bart") / "hub", "bart")


def text_of(model, ids):
    ends = np.flatnonzero(ids == model.tokenizer.vocab.eos)
    return model.tokenizer.decode(ids[: ends[0] if len(ends) else None])


def test_an_imported_llama_reads_its_bos_before_each_text(llama):
    model, theirs = cloze.load(llama), transformers.AutoModelForCausalLM.from_pretrained(llama).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama)
    assert model.experiment.data.decoder_start_token == "bos"
    for prompt in ("the quick", "fox", ""):
        inputs = tokenizer(prompt, return_tensors="pt")
        assert inputs.input_ids[0, 0] == 1
        greedy = theirs.generate(**inputs, max_new_tokens=NEW, do_sample=False)[0, inputs.input_ids.shape[1] :]
        assert model.generate(prompt, max_tokens=NEW, temperature=0).answer == text_of(model, greedy.numpy())
    ids = tokenizer("the quick fox", return_tensors="pt").input_ids
    with torch.no_grad():
        log_probs = theirs(ids).logits.log_softmax(-1)[0]
        # A start with eos, as before data.decoder_start_token, gives other numbers.
        wrong = theirs(torch.cat([torch.tensor([[2]]), ids[:, 1:]], 1)).logits.log_softmax(-1)[0]
    targets = (range(ids.shape[1] - 1), ids[0, 1:])
    found = model.text_log_likelihood("the quick fox").log_likelihood
    np.testing.assert_allclose(found, log_probs[targets].sum(), rtol=1e-5)
    assert abs(found - float(wrong[targets].sum())) > 1e-3


def test_the_decoder_of_an_imported_bart_starts_with_its_eos(bart):
    """AutoTokenizer also puts <s> before the text that the encoder reads, which this project's BART does not read."""
    model, theirs = cloze.load(bart), transformers.AutoModelForSeq2SeqLM.from_pretrained(bart).eval()
    assert model.experiment.data.decoder_start_token == "eos"
    prompt = "the quick<mask> fox"
    ids = transformers.AutoTokenizer.from_pretrained(bart)(prompt, return_tensors="pt").input_ids[:, 1:]
    # The class of transformers forces an EOS at the last position.
    options = {"max_new_tokens": NEW + 1, "do_sample": False, "suppress_tokens": [1], "num_beams": 1}
    greedy, wrong = (
        theirs.generate(ids, attention_mask=torch.ones_like(ids), decoder_start_token_id=start, **options)[0, 1:]
        for start in (2, 1)
    )
    answer = model.generate(prompt, max_tokens=NEW, temperature=0).answer
    assert answer and answer == text_of(model, greedy.numpy()) != text_of(model, wrong.numpy())


def test_gpt2_starts_with_end_of_text(tmp_path):
    """Texts start with <|endoftext|> also where a pad token is appended, and where config.json has the class's id."""
    folder = make_hub_folder(tmp_path / "gpt2", "gpt2", extra_rows=20, bos_token_id=300, eos_token_id=300)
    overrides = {"data.append_special_tokens": True, "data.num_sentinels": 1}
    for vocab in (cloze.load(folder).tokenizer.vocab, cloze.load(folder, overrides=overrides).tokenizer.vocab):
        assert vocab.decoder_start == vocab.eos == 300
    change_config(folder, bos_token_id=50256)
    source = open_model(folder, "")
    assert source.tokenizer.vocab.decoder_start == 300
    assert "config.json has bos_token_id=50256, which is neither pad, bos nor eos" in source.notes[0]


def test_another_start_of_an_encoder_decoder_is_refused(tmp_path):
    folder = make_hub_folder(tmp_path / "bart", "bart")
    change_config(folder, decoder_start_token_id=7)
    with pytest.raises(ConfigError, match=r"decoder_start_token_id=7 is not supported, .* \(eos 2, bos 0, pad 1\)"):
        open_model(folder, "--from=x")


def test_a_run_starts_from_a_folder_with_the_same_first_token(llama):
    origin = open_origin(str(llama))
    fields = {f"model__{name}": getattr(origin.model, name) for name in small_config("clm", "decoder_only")["model"]}
    data = {"tokenizer": str(llama), "append_special_tokens": False, "mode_tokens": (), "bidirectional_inputs": False}
    fields |= {f"data__{name}": value for name, value in data.items()}
    config = small_config("clm", "decoder_only", **fields, data__decoder_start_token="bos")
    assert plan_start(origin, make_experiment(config)).notes == ()
    with pytest.raises(ConfigError, match=r"'<s>', and here with '</s>': set data.decoder_start_token='bos'"):
        plan_start(origin, make_experiment(small_config("clm", "decoder_only", **fields)))
