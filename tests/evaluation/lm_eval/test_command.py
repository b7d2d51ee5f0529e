"""The command python -m train.lm_eval on local tasks, and the arguments of its model."""

import json
import math
import re
import sys

import numpy as np
import pytest

pytest.importorskip("lm_eval")

from contract.errors import ConfigError
from evaluation.lm_eval import __main__ as command
from evaluation.lm_eval.model import ClozeLM
from tests.evaluation.lm_eval.runs import greedy, loglikelihoods
from tests.evaluation.test_likelihood import decoder_log_probs, ids
from tests.train.subprocesses import ROOT

INVALID = {
    "no workdir": ("clm", {"workdir": None}, "--model_args workdir= must be the folder of a run"),
    "unknown": ("clm", {"pretrained": "gpt2"}, "--model_args has the unknown pretrained=gpt2: docs"),
    "step": ("clm", {"step": "last"}, "--model_args step=last must be an integer of 0 or more"),
    "encoder": ("mlm", {}, "objective.name='mlm' on encoder_only does not continue texts"),
    "labels": ("classification", {}, "objective.name='classification' does not train the prediction of tokens"),
}


@pytest.mark.parametrize("case", INVALID)
def test_what_cannot_be_evaluated_is_an_error(workdirs, case):
    name, arguments, message = INVALID[case]
    arguments = {"workdir": workdirs[name]} | arguments
    with pytest.raises(ConfigError, match=message) as error:
        ClozeLM(**{key: value for key, value in arguments.items() if value is not None})
    assert "\n" not in str(error.value)


TASKS = {
    "choice": """
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "rolling": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: bits_per_byte}, {metric: word_perplexity}]
""",
    "writing": """
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["e"], max_gen_toks: 8}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
}


@pytest.fixture
def run_command(tmp_path, monkeypatch, capsys, workdirs, models):
    """Runs the command on local tasks; returns the results that it writes."""
    import lm_eval.tasks

    documents = [
        {"question": question, "choices": [" a", " b c", " pass", "\n"], "gold": k, "answer": answer}
        for k, question in enumerate(["def f(x)", "a é b", "x = y + ", "import"])
        for answer in [greedy(models["clm"], question, 8).split("e")[0] if k < 3 else "?"]
    ]
    (tmp_path / "documents.jsonl").write_text("\n".join(map(json.dumps, documents)), encoding="utf-8")
    source = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {tmp_path}/documents.jsonl}}}}"
    for name, fields_of_task in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(f"task: local_{name}\n{source}\ntest_split: test{fields_of_task}")
    manager = lm_eval.tasks.TaskManager
    # Without the index of lm-eval's own tasks, which takes 5 s.
    monkeypatch.setattr("lm_eval.tasks.TaskManager", lambda **options: manager(**options, include_defaults=False))

    def run(tasks, *flags, model_args=f"workdir={workdirs['clm']}"):
        out = tmp_path / "out.json"
        given = ["lm_eval", "--model_args", model_args, "--tasks", tasks, "--include_path", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", [*given, "--output_path", str(out), *flags])
        command.main()
        [path] = tmp_path.glob("out_*.json")
        results = json.loads(path.read_text())
        path.unlink()
        return results

    run.documents = documents
    return run


@pytest.mark.slow
def test_the_command_writes_lm_evals_results_for_local_tasks(run_command, models, tmp_path):
    cache = ("--use_cache", str(tmp_path / "cache"))
    results = run_command("local_choice,local_rolling,local_writing", "--batch_size", "4", *cache)
    assert results["config"]["model"] == "cloze" and results["config"]["step"] == 3
    assert results["config"]["batch_size"] == "4" and results["config"]["denoiser"] == "clm"
    found, documents = results["results"], run_command.documents
    texts = [document["question"] for document in documents]
    scores = [loglikelihoods(models["clm"], *((text, choice) for choice in documents[0]["choices"])) for text in texts]
    correct = [int(np.argmax(row)) == document["gold"] for row, document in zip(scores, documents, strict=True)]
    assert found["local_choice"]["acc,none"] == np.mean(correct)
    nats = -sum(decoder_log_probs(models["clm"].language_model, ids(text)).sum() for text in texts)
    num_bytes, words = sum(len(text.encode()) for text in texts), sum(len(re.split(r"\s+", text)) for text in texts)
    np.testing.assert_allclose(found["local_rolling"]["bits_per_byte,none"], nats / num_bytes / math.log(2), rtol=1e-5)
    np.testing.assert_allclose(math.log(found["local_rolling"]["word_perplexity,none"]), nats / words, rtol=1e-5)
    assert found["local_writing"]["exact_match,none"] == 0.75
    assert run_command("local_choice,local_rolling,local_writing", *cache)["results"] == found
    limited = run_command("local_choice", "--limit", "1")
    assert limited["config"]["batch_size"] == "auto"
    assert limited["results"]["local_choice"]["acc,none"] == correct[0]


def test_the_help_says_that_yaml_files_of_tasks_execute_python(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lm_eval", "run", "--help"])
    with pytest.raises(SystemExit):
        command.main()
    printed = capsys.readouterr().out
    assert "can name Python functions (!function), which are executed" in printed and "--include_path" in printed


def test_a_yaml_file_executes_python_as_the_docs_say(run_command, tmp_path):
    made = tmp_path / "executed"
    (tmp_path / "functions.py").write_text(
        f"import os\nos.mkdir({str(made)!r})\ndef question(doc): return doc['question']"
    )
    task = (tmp_path / "choice.yaml").read_text().replace('"{{question}}"', "!function functions.question")
    (tmp_path / "choice.yaml").write_text(task)
    run_command("local_choice", "--limit", "1")
    assert made.is_dir()
    for page in ("README.md", "docs/lm_eval.md"):
        assert "`!function`" in (ROOT / page).read_text()


def test_the_model_executes_the_file_of_code(workdirs, tmp_path):
    file = tmp_path / "registers.py"
    file.write_text("raise RuntimeError('executed')")
    with pytest.raises(ConfigError, match=f"^--model_args code={file} cannot be read: RuntimeError: executed$"):
        ClozeLM(workdirs["clm"], code=str(file))


def test_the_command_refuses_in_one_line(run_command, workdirs, monkeypatch):
    for tasks, flags, message in [
        ("no_such_task", (), "Tasks not found: no_such_task"),
        ("local_choice", ("--apply_chat_template",), "To use this model with chat templates, please implement"),
        ("local_writing", ("--gen_kwargs", "num_beams=2"), "generation_kwargs: num_beams=2 is not supported"),
    ]:
        with pytest.raises(ConfigError, match=message) as error:
            run_command(tasks, *flags)
        assert "\n" not in str(error.value)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(ConfigError, match=r"lm-eval is not installed: pip install -e '\.\[lm_eval\]'"):
        run_command("local_choice")
