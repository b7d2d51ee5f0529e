"""Models of Hugging Face folders and of configs."""

import numpy as np
import pytest

import cloze
from tests.table import small_config


def test_a_hugging_face_folder_has_the_logits_and_the_greedy_text_of_transformers(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from tests.huggingface.hub_folders import make_hub_folder

    folder = make_hub_folder(tmp_path / "gpt2", "gpt2", extra_rows=3)
    model, theirs = cloze.load(folder), transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert repr(model).startswith(f"model       {folder}\n") and "clm" in repr(model)
    ids, batch = model.tokenizer.encode("the quick brown fox"), model.batch("the quick brown fox")
    read = torch.tensor(batch["decoder_input_tokens"][:, : len(ids)].astype(np.int64))  # the start token, and the text
    with torch.no_grad():
        logits = theirs(read).logits
    np.testing.assert_allclose(model.logits(batch)[:, : len(ids)], logits, atol=1e-4)
    found, given = model.log_likelihood("the quick", " brown fox"), len(model.tokenizer.encode("the quick"))
    expected = logits.log_softmax(-1)[0, range(given, len(ids)), ids[given:]].sum()
    np.testing.assert_allclose(found.log_likelihood, expected, rtol=1e-5)
    answer = model.generate("the quick", max_tokens=5, temperature=0)
    with torch.no_grad():
        greedy = theirs.generate(read[:, : given + 1], max_new_tokens=5, do_sample=False)[0, given + 1 :].numpy()
    ends = greedy == model.tokenizer.vocab.eos
    assert answer.answer == model.tokenizer.decode(greedy[: ends.argmax() if ends.any() else None])
    with pytest.raises(cloze.ConfigError, match="is a Hugging Face folder, which has no steps: remove step=3"):
        cloze.load(folder, step=3)


def test_a_folder_of_an_unknown_kind_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "architectures": ["MambaForCausalLM"]}')
    with pytest.raises(cloze.ConfigError) as error:
        cloze.load(tmp_path)
    assert "\n" not in str(error.value) and str(error.value).startswith(f"{tmp_path}")


def test_a_new_model_is_that_of_the_config_and_its_seed():
    config = small_config("clm", "decoder_only")
    first, second = cloze.new(config), cloze.new(config, {"seed": config["seed"] + 1})
    again = cloze.new(config)
    embedding = [
        np.asarray(model.params["transformer"]["token_embedder"]["embedding"]) for model in (first, second, again)
    ]
    assert (embedding[0] == embedding[2]).all() and (embedding[0] != embedding[1]).any()
    assert cloze.new(config, {"model.d_ff": 64}).experiment.model.d_ff == 64
    assert config["model"]["d_ff"] != 64  # the caller's config is unchanged
