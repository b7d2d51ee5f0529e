"""Exports of runs: `transformers` loads them and generates the same greedy text, and every refusal is one line."""

import json
import os
import sys

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("safetensors")

import transformers

import cloze
from configs import architectures
from contract.errors import ConfigError
from experiment.experiment import make_experiment
from generate import __main__ as generate
from generate.sample import readable
from huggingface.export import Exporter, around_text
from huggingface.folder import open_folder
from models.parameters import array_types
from run.restore import load_experiment, load_params, load_transformer, reading_mesh, transformer_alone
from tests.huggingface.exported_runs import CAUSAL, run_export, shape, text_fields
from tests.table import small_config
from tests.train.small_runs import save_random_run
from workdir.workdir import Workdir

CLASSES = {"t5": "T5ForConditionalGeneration", "gpt2": "GPT2LMHeadModel"}
CLASSES |= dict.fromkeys(("llama", "span_decoder"), "LlamaForCausalLM")
BERT = shape(architectures.BERT["base"])
CLASSES_OF_TEXTS = ("no", "perhaps", "yes")
RAW_TOKENS = 1_232_000  # of a step of `trained`


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    """The folder of a UL2 run with checkpoints of the steps 2 and 4, without the training, which takes long."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    fields = small_config("ul2", "encoder_decoder", **text_fields(corpus), train__steps=4, train__ema_decay=0.9)
    save_random_run(fields, str(workdir), steps=(2, 4), raw_tokens=RAW_TOKENS)
    totals = {
        step: {"raw_tokens": RAW_TOKENS * step, "loss": 4.592621969443944 / step, "loss_stderr": 0.01234}
        for step in (2, 4)
    }
    lines = [{"step": step, "split": "eval", **values} for step, values in totals.items()]
    (workdir / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return workdir


def printed_by_generate(capsys, run, prompt, *arguments):
    sys.argv = ["train.generate", f"--workdir={run}", f"--prompt={prompt}", *arguments]
    capsys.readouterr()
    generate.main()
    return capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("t5", "def f<extra_id_0>return 1"),
        ("gpt2", "def f"),
        ("llama", "def f"),
        ("span_decoder", "def f<extra_id_0>return 1"),
    ],
)
def test_transformers_generates_the_same_greedy_text(exported, capsys, name, prompt):
    run, out = exported(name)
    printed = printed_by_generate(capsys, run, prompt, "--temperature=0", "--max_tokens=12")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    auto = transformers.AutoModelForSeq2SeqLM if name == "t5" else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(out)
    assert type(model).__name__ == CLASSES[name]
    inputs = tokenizer(prompt, return_tensors="pt")
    assert inputs.input_ids[0].tolist()[-1 if name == "t5" else 0] == (1 if name == "t5" else 0)
    tokens = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0].numpy()
    experiment = load_experiment(str(run))
    answer = tokens[1 if name == "t5" else inputs.input_ids.shape[1] :]
    answer = answer[: np.append(np.flatnonzero(answer == experiment.vocab.eos), len(answer))[0]]
    assert len(set(answer.tolist())) > 1
    text = readable(experiment, answer)
    expected = f"answer: {text}\n" if name in ("t5", "span_decoder") else f"{prompt}{text}\n"
    assert printed.startswith(expected)


def test_padding_and_rows_that_are_no_token_are_never_generated(exported, capsys):
    run, out = exported("gpt2")
    experiment = load_experiment(str(run))
    vocab, rows = experiment.vocab, experiment.model.vocab_size
    assert vocab.size % 128 and rows == -(-vocab.size // 128) * 128
    never = [vocab.pad, *range(vocab.size, rows)]
    written = json.loads((out / "generation_config.json").read_text())
    assert written == {"bos_token_id": vocab.pad, "eos_token_id": vocab.eos, "suppress_tokens": never}
    # Nearly uniform draws: 200 of them without a row of `never` by chance have a probability of 2 in 100,000.
    printed = printed_by_generate(capsys, run, "def f", "--temperature=99", "--max_tokens=25", "--num_samples=8")
    assert len(printed) > 200 and "<id " not in printed and "<pad>" not in printed
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    inputs = transformers.AutoTokenizer.from_pretrained(out)("def f", return_tensors="pt")
    transformers.set_seed(0)
    drawn = model.generate(**inputs, do_sample=True, temperature=99.0, max_new_tokens=25, num_return_sequences=8)
    new = drawn[:, inputs.input_ids.shape[1] :].numpy()
    until_end = np.cumsum(new == vocab.eos, axis=1) - (new == vocab.eos) == 0  # then transformers writes pad
    assert until_end.sum() > 150 and not np.isin(new[until_end], never).any()


def test_a_batch_is_generated_as_each_prompt_alone(exported):
    """GPT-2 has learned positions: padded on the left, a mere forward pass would read others."""
    _, out = exported("llama")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    prompts = ["def f(x):", "a"]

    def answers(texts):
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        return model.generate(**inputs, max_new_tokens=6, do_sample=False)[:, inputs.input_ids.shape[1] :].tolist()

    assert answers(prompts) == [answers([prompt])[0] for prompt in prompts]
    assert transformers.AutoTokenizer.from_pretrained(exported("gpt2")[1]).padding_side == "right"


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("t5", (), (1,)),
        ("gpt2", (0,), ()),
        ("span_decoder", (0,), (1,)),
        ("ul2_decoder", (0,), (1,)),
        ("fim", (0,), ()),
        ("bart", (), (1,)),
    ],
)
def test_the_tokenizer_adds_what_training_has_around_a_text(exported, name, begin, end):
    """And nothing else: sentinels and mode tokens are written in the text."""
    run, out = exported(name)
    experiment = load_experiment(str(run))
    assert around_text(experiment) == (begin, end)
    text = "ab" if name == "gpt2" else "ab<extra_id_0>c"
    ids = experiment.tokenizer.encode_with_specials(text).tolist()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert tokenizer(text).input_ids == [*begin, *ids, *end]
    is_limited = experiment.model.positions == "learned"
    assert tokenizer.model_max_length == (experiment.model.max_length if is_limited else 10**30)


def test_the_tokenizer_adds_only_what_every_denoiser_has():
    """A mixture of CLM and span corruption: the text of a prompt says which of the two it is for."""
    mixture = small_config("ul2", "decoder_only", **CAUSAL)
    clm = small_config("clm", "decoder_only")["objective"]
    mixture["objective"]["denoisers"]["s"] = clm | {"mode": "[S]", "weight": 1.0}
    experiment = make_experiment(mixture)
    assert around_text(experiment) == ((experiment.vocab.pad,), ())


def test_pairs_of_texts_have_token_types(exported):
    _, out = exported("nsp")
    inputs = transformers.AutoTokenizer.from_pretrained(out)("ab", "cde")
    assert inputs.token_type_ids == [0, 0, 0, 0, 1, 1, 1, 1]


def test_the_card_and_the_tensors_are_those_of_the_step(trained, tmp_path):
    run_export(f"--workdir={trained}", f"--out={tmp_path / 'out'}", "--step=2", "--dtype=bfloat16")
    out = tmp_path / "out"
    assert len({path.stat().st_mode for path in out.iterdir()}) == 1  # the weights were their owner's alone
    card = (out / "README.md").read_text()
    for expected in (
        "| held-out loss | 2.296 ± 0.012 nats per scored token |",
        "| tokens seen | 2,464,000 of training text |",
        "| steps | 2 of 8 rows |",
        "model = AutoModelForSeq2SeqLM.from_pretrained",
    ):
        assert expected in card, expected
    assert "cache_dir" not in json.loads((out / "cloze.json").read_text())["config"]["data"], "a path of this machine"
    # The averaged parameters, rounded.
    experiment = load_experiment(str(trained))
    params = load_params(experiment, str(trained), 2)[0]["transformer"]
    saved = open_folder(out, "").tensors["shared.weight"]
    np.testing.assert_allclose(saved, params["token_embedder"]["embedding"], rtol=2**-8)
    assert (saved != params["token_embedder"]["embedding"]).any()
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"


def test_an_existing_folder_is_refused(trained, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "file").touch()
    with pytest.raises(ConfigError, match=r"--out=.* exists and is not empty: name a new folder"):
        run_export(f"--workdir={trained}", f"--out={tmp_path / 'out'}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step=3"], r"no checkpoint of step 3"),
        (["--discriminator_only"], "--discriminator_only is for runs of ELECTRA: remove it"),
        (["--language_model_only"], "--language_model_only leaves nothing out of this run: remove it"),
    ],
)
def test_arguments_that_cannot_work_are_one_line(trained, tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message) as error:
        run_export(f"--workdir={trained}", f"--out={tmp_path / 'out'}", *arguments)
    assert len(str(error.value).splitlines()) == 1 and not list(tmp_path.iterdir())


def test_electra_has_a_folder_for_each_model(tmp_path, corpus, monkeypatch, capsys):
    electra = text_fields(corpus) | shape(architectures.BERT["base"])
    save_random_run(small_config("electra", "encoder_only", **electra), str(tmp_path / "tanh"))
    with pytest.raises(ConfigError, match=r"model.mlp='gelu': ElectraForMaskedLM .*: --discriminator_only leaves"):
        run_export(f"--workdir={tmp_path / 'tanh'}", f"--out={tmp_path / 'out'}")
    run_export(f"--workdir={tmp_path / 'tanh'}", f"--out={tmp_path / 'alone'}", "--discriminator_only")
    assert sorted(os.listdir(tmp_path / "alone")) == ["cloze.json", "discriminator"]
    loaded, info = transformers.ElectraForPreTraining.from_pretrained(
        tmp_path / "alone" / "discriminator", output_loading_info=True
    )
    assert not any(info.values()) and loaded.config.hidden_act == "gelu_new"
    save_random_run(
        small_config("electra", "encoder_only", **electra | {"model__mlp": "exact_gelu"}), str(tmp_path / "run")
    )
    run_export(f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}")
    assert sorted(os.listdir(tmp_path / "out")) == ["cloze.json", "discriminator", "generator"]
    for part, auto in (("discriminator", "AutoModelForPreTraining"), ("generator", "AutoModelForMaskedLM")):
        folder = tmp_path / "out" / part
        assert f"\n# electra (encoder-only), {part}\n" in (folder / "README.md").read_text()
        _, info = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)
        assert not any(info.values())


def test_an_export_merges_the_disentangled_embeddings_of_electra(tmp_path, corpus):
    electra = text_fields(corpus) | shape(architectures.BERT["base"]) | {"objective__embedding_sharing": "gdes"}
    save_random_run(small_config("electra", "encoder_only", **electra), str(tmp_path / "run"))
    run_export(f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}", "--discriminator_only")
    experiment = load_experiment(str(tmp_path / "run"))
    params, _ = load_params(experiment, str(tmp_path / "run"))
    words = [np.asarray(params[entry]["token_embedder"]["embedding"]) for entry in ("generator", "transformer")]
    assert min(np.abs(table).max() for table in words) > 0
    model = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "out" / "discriminator")
    exported = model.electra.embeddings.word_embeddings.weight.detach().numpy()
    np.testing.assert_array_equal(exported, words[0] + words[1])
    transformer, _ = load_transformer(experiment, str(tmp_path / "run"), reading_mesh(experiment))
    np.testing.assert_array_equal(transformer["token_embedder"]["embedding"], exported)
    model, parameters = transformer_alone(experiment, params)
    np.testing.assert_array_equal(parameters["token_embedder"]["embedding"], exported)


def test_the_language_model_alone(tmp_path, corpus):
    fields = small_config("multi_token_prediction", "decoder_only", **text_fields(corpus))
    save_random_run(fields, str(tmp_path / "run"))
    with pytest.raises(ConfigError, match="in addition to the Transformer, and no class of transformers"):
        run_export(f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}")
    run_export(f"--workdir={tmp_path / 'run'}", f"--out={tmp_path / 'out'}", "--language_model_only")
    experiment = load_experiment(str(tmp_path / "run"))
    exported = sum(tensor.size for tensor in open_folder(tmp_path / "out", "").tensors.values())
    everything = array_types(experiment.params_shapes)
    assert exported < experiment.num_params and any(not name.startswith("transformer/") for name in everything)
    assert "| not in this folder | what the run trained in addition" in (tmp_path / "out" / "README.md").read_text()


def classifier_run(folder, architecture, **overrides):
    lines = [json.dumps({"text": f"text {k}", "label": CLASSES_OF_TEXTS[k % 3]}) for k in range(60)]
    (folder / "texts.jsonl").write_text("\n".join(lines))
    data = {
        "data__source": "jsonl",
        "data__path": str(folder / "texts.jsonl"),
        "data__cache_dir": str(folder / "cache"),
    }
    fields = small_config("classification", architecture, **data, **overrides, objective__classes=CLASSES_OF_TEXTS)
    save_random_run(fields, str(folder / "run"))
    return folder / "run"


@pytest.mark.parametrize("published", ["BERT", "ROBERTA"])
def test_a_classifier_gives_the_same_probabilities(published, tmp_path):
    torch = pytest.importorskip("torch")
    run = classifier_run(tmp_path, "encoder_only", **shape(getattr(architectures, published)["base"]))
    run_export(f"--workdir={run}", f"--out={tmp_path / 'out'}")
    texts = ["def f(x):", "the quick brown fox"]
    ours = cloze.load(run).classify(texts)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert type(model).__name__.upper().startswith(published) and model.config.id2label[1] == CLASSES_OF_TEXTS[1]
    for text, expected in zip(texts, ours, strict=True):
        with torch.no_grad():
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
        theirs = dict(zip(CLASSES_OF_TEXTS, torch.softmax(logits, -1).tolist(), strict=True))
        assert theirs == pytest.approx(expected.probabilities, abs=1e-5)
    assert "AutoModelForSequenceClassification" in (tmp_path / "out" / "README.md").read_text()


def test_a_classifier_that_no_class_holds_is_one_line(tmp_path):
    run = classifier_run(tmp_path, "decoder_only")
    with pytest.raises(ConfigError, match=r"objective.pooling='position' with model.architecture='decoder_only': "):
        run_export(f"--workdir={run}", f"--out={tmp_path / 'out'}")


@pytest.mark.parametrize(
    ("name", "architecture", "overrides", "message"),
    [
        (
            "masked_diffusion",
            "encoder_only",
            {"objective__alignment": "next"},
            "predicts a token where the token before",
        ),
        ("hybrid", "decoder_only", {}, "mntp has rows that a decoder reads in both directions, which no class of"),
        ("mlm", "decoder_only", CAUSAL, "mlm has rows that a decoder reads in both directions"),
        ("mass", "encoder_decoder", shape(architectures.MASS["base"]), "mass has targets at positions of their own"),
        ("glm", "decoder_only", CAUSAL, "glm has targets at positions of their own"),
        ("unilm:tiny,left_to_right", "encoder_only", BERT, "unilm has tokens that attend to one side alone"),
    ],
)
def test_rows_that_no_class_reads_are_named(name, architecture, overrides, message, corpus):
    experiment = make_experiment(small_config(name, architecture, **text_fields(corpus), **overrides))
    with pytest.raises(ConfigError, match=message):
        Exporter(None, experiment, "float32").folders(experiment.params_shapes)


def test_a_mixture_with_a_pattern_that_a_class_has_is_exported(corpus, tmp_path):
    experiment = make_experiment(small_config("unilm", "encoder_only", **text_fields(corpus), **BERT))
    [folder] = Exporter(Workdir(tmp_path), experiment, "float32").folders(experiment.params_shapes).values()
    assert folder.family.architecture == "BertForMaskedLM"


def causal_folders(name, corpus, run):
    experiment = make_experiment(small_config(name, "decoder_only", **text_fields(corpus)))
    return Exporter(Workdir(run), experiment, "float32", causal=True).folders(experiment.params_shapes)


def test_a_hybrid_is_exported_as_the_decoder_of_its_causal_rows(corpus, tmp_path):
    [folder] = causal_folders("hybrid", corpus, tmp_path).values()
    assert folder.family.architecture == "LlamaForCausalLM" and not folder.model.has_prefix
    with pytest.raises(ConfigError, match="--causal is for a decoder that reads rows in both directions: remove it"):
        causal_folders("clm", corpus, tmp_path)
    with pytest.raises(
        ConfigError, match="--causal needs rows that were read from the left in training, as CLM's, and"
    ):
        causal_folders("prefix_lm", corpus, tmp_path)


@pytest.mark.parametrize(
    ("name", "remedy"), [("hybrid", "--causal exports it for causal rows"), ("block_diffusion", "it has no export")]
)
def test_causal_is_a_remedy_where_rows_are_causal(name, remedy, corpus):
    experiment = make_experiment(small_config(name, "decoder_only", **text_fields(corpus)))
    with pytest.raises(ConfigError, match=f"which no class of transformers does: {remedy}"):
        Exporter(None, experiment, "float32").folders(experiment.params_shapes)


def test_the_tokenizer_of_masked_diffusion_adds_nothing_around_a_text(corpus):
    experiment = make_experiment(small_config("masked_diffusion", "encoder_only", **text_fields(corpus)))
    assert around_text(experiment) == ((), ())
    assert around_text(make_experiment(small_config("mlm", "encoder_only", **text_fields(corpus)))) != ((), ())
