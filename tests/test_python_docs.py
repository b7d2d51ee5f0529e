"""The code of docs/python.md, run as written, one block after the other, on tiny runs with random parameters."""

import functools
import os
import pathlib
import re

import jax
import numpy as np
import pytest

from run.step import init_state, make_train_step
from tests.table import small_config
from tests.train.small_runs import save_random_run

PAGE = (pathlib.Path(__file__).parent.parent / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def folder(corpus, tmp_path_factory):
    """A folder with runs/ul2, runs/mlm and texts/."""
    folder = tmp_path_factory.mktemp("python")
    data = {"source": "text", "path": str(corpus / "text"), "cache_dir": str(corpus / "cache")}
    for name, architecture in (("ul2", "encoder_decoder"), ("mlm", "encoder_only")):
        config = small_config(name, architecture)
        config["data"] |= data | {"inputs_length": 64, "targets_length": 64}
        save_random_run(config, str(folder / "runs" / name))
        (folder / "runs" / name / "metrics.jsonl").write_text('{"step": 1, "split": "eval", "loss": 2.5}\n')
    (folder / "texts").symlink_to(corpus / "text")
    return folder


@pytest.mark.slow
def test_every_block_runs_as_written(folder, monkeypatch, capsys):
    assert len(BLOCKS) >= 8
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))  # the default data.cache_dir
    names = {}
    printed = []
    for number, block in enumerate(BLOCKS):
        first_line = PAGE[: PAGE.index(block)].count("\n")
        exec(compile("\n" * first_line + block, "docs/python.md", "exec"), names)
        printed.append(capsys.readouterr().out)
        assert printed[number].strip(), block
    assert "mixture: r1 [R], r2 [R], s [S]" in printed[0] and names["logits"].ndim == 3
    assert len(names["answers"]) == 2 and names["answers"][0].text.startswith("A ")
    assert names["loss"].denoiser == "s" and names["loss"].bytes == 560
    assert printed[2].splitlines()[-1] == "1 2.5"
    assert len(names["both"]) == 2 and len(names["filled"].candidates[0]) == 5
    assert names["trained"].step == 4 and os.path.isdir(folder / "runs" / "clm" / "checkpoints" / "4")
    check_own_loop(names, printed[-4])
    assert printed[-1] == "--workdir=runs/nowhere is not the folder of a run: runs/nowhere/config.json does not exist\n"


def check_own_loop(names, printed):
    """The loop's updates are those of the step of train.main with the same optimizer."""
    model, learner, optimizer = names["model"], names["learner"], names["optimizer"]
    state = init_state(learner, optimizer, model.experiment.seed)
    step = jax.jit(make_train_step(learner, optimizer, grad_accum_steps=1, seed=0))
    for n, batch in zip(range(4), model.batches(), strict=False):
        state, sums = step(state, batch)
        nats = sums["loss_sum"] / sums["weight_sum"]
        assert printed.splitlines()[n] == f"batch {n}: {nats:.3f} nats per scored token"
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-3, atol=1e-6), names["params"], state.params)
