"""--prompts=FILE of train.generate: files of prompts, JSON lines of answers, and files that cannot be read."""

import io
import json
import os
import sys
import threading

import pytest

from contract.errors import ConfigError
from generate import __main__ as generate
from generate.texts import read_prompts
from tests.generate.test_generate import run_command


def run(monkeypatch, capsys, workdir, *arguments, stdin=b""):
    """The JSON lines that the command prints, and what it prints to standard error."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
    monkeypatch.setattr(sys, "argv", ["generate", f"--workdir={workdir}", *map(str, arguments)])
    generate.main()
    out, err = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], err


def test_each_line_has_the_answer_of_the_prompt_alone(workdirs, monkeypatch, capsys, tmp_path):
    prompts = ["ab<extra_id_0>cd", "x", 'a "b"\tc é']
    (tmp_path / "p.txt").write_text("\n".join(prompts), encoding="utf-8")
    (tmp_path / "p.jsonl").write_text("\n\n".join(json.dumps({"n": 1, "prompt": text}) for text in prompts) + "\n")
    options = ("--max_tokens=12", "--num_samples=2", "--temperature=1.5", "--seed=3", "--batch_size=4")
    records, _ = run(monkeypatch, capsys, workdirs["ul2"], f"--prompts={tmp_path}/p.txt", *options)
    assert [record["prompt"] for record in records] == [text for text in prompts for _ in range(2)]
    assert [(record["seed"], record["sample"]) for record in records] == [(3, 1), (3, 2)] * 3
    assert set(records[0]) == {"prompt", "answer", "text", "finished", "seed", "sample"}
    out, _ = run_command(monkeypatch, capsys, workdirs["ul2"], prompts[0], *options[:-1])
    for printed, record in zip(out.split("--- sample ")[1:], records, strict=False):
        answer, text = printed[7:].removeprefix("answer: ").split("\ntext: ")
        if record["answer"].isprintable() and record["text"].isprintable():
            assert (answer, text.removesuffix("\n")) == (record["answer"], record["text"])
    assert records[0]["text"].startswith("ab") and records[0]["text"].endswith("cd")
    # The same prompts from JSON lines, from standard input, and into a file.
    assert run(monkeypatch, capsys, workdirs["ul2"], f"--prompts={tmp_path}/p.jsonl", *options)[0] == records
    content = (tmp_path / "p.txt").read_bytes() + b"\r\n"
    arguments = ("--prompts=-", f"--out={tmp_path}/out.jsonl", *options)
    lines, printed = run(monkeypatch, capsys, workdirs["ul2"], *arguments, stdin=content)
    assert lines == [] and printed.splitlines() == [
        "note: denoiser r reads the prompt, with mode token [R]; choose another mode with --mode",
        "note: denoiser s reads the prompt, with mode token [S]; choose another mode with --mode",
        f"{len(records)} answers in {tmp_path}/out.jsonl",
    ]
    written = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert list(map(json.loads, written)) == records
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "p.jsonl", "p.txt"]


FILES = {  # objective, name of the file, its bytes, flags, the error
    "empty": ("clm", "p.txt", b"", [], "p.txt has no prompts: write one in each line"),
    "blank objects": ("clm", "p.jsonl", b"\n", [], "p.jsonl has no prompts: write one in each line"),
    "not UTF-8": ("clm", "p.txt", b"ab\na\xff", [], r"p.txt is not UTF-8 \(byte 4\)"),
    "no field": ("clm", "p.jsonl", b'{"prompt": "a"}\n{"text": "a"}', [], "p.jsonl, line 2 has no 'prompt': write an"),
    "too long": ("clm", "p.txt", b"a\n" + b"a" * 48, [], r"line 2 has 48 tokens.*data\.inputs_length=48"),
    "both": ("clm", "p.txt", b"a", ["--prompt=a"], "--prompt and --prompts exclude each other"),
    "out": ("clm", "p.txt", b"a", ["--out=/nowhere/o"], "--out=/nowhere/o cannot be written: name a file in an ex"),
}


@pytest.mark.parametrize(("objective", "name", "content", "arguments", "message"), FILES.values(), ids=FILES)
def test_invalid_files_raise_one_line_before_the_checkpoint_is_read(
    workdirs, monkeypatch, capsys, tmp_path, objective, name, content, arguments, message
):
    (tmp_path / name).write_bytes(content)
    monkeypatch.setattr(generate, "load_params", None)
    with pytest.raises(ConfigError, match=message) as error:
        run(monkeypatch, capsys, workdirs[objective], f"--prompts={tmp_path}/{name}", *arguments)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("content", "expected"), [(b"\n", [""]), (b"\n\n", ["", ""]), (b"a\n\n", ["a", ""])])
def test_a_blank_line_is_an_empty_prompt(content, expected, tmp_path):
    (tmp_path / "p.txt").write_bytes(content)
    assert [prompt.text for prompt in read_prompts(str(tmp_path / "p.txt"))] == expected


def test_a_pipe_has_the_prompts_that_a_process_writes():
    read, write = os.pipe()
    threading.Timer(0.2, lambda: (os.write(write, b"a\nb\n"), os.close(write))).start()
    assert [prompt.text for prompt in read_prompts(f"/dev/fd/{read}")] == ["a", "b"]
    os.close(read)
