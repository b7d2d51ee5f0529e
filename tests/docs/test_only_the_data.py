"""The code of docs/only_the_data.md, run as written, one block after the other."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from contract.batch import check_batch

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "only_the_data.md").read_text(encoding="utf-8")
EVERY_BLOCK = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[SCRIPT] = [block for block in EVERY_BLOCK if "__main__" in block]
BLOCKS = [block for block in EVERY_BLOCK if block != SCRIPT]


def test_every_block_runs_as_written(corpus, tmp_path, monkeypatch, capsys):
    (tmp_path / "texts").symlink_to(corpus / "text")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # the default data.cache_dir
    names, printed = {}, []
    for block in BLOCKS:
        first_line = PAGE[: PAGE.index(block)].count("\n")
        exec(compile("\n" * first_line + block, "docs/only_the_data.md", "exec"), names)
        printed.append(capsys.readouterr().out)
    assert printed[1] == "(16, 64)\n" and len(BLOCKS) == 6
    batch, text, vocab = (names[name] for name in ("batch", "text", "vocab"))
    check_batch(batch, "encoder_decoder")
    assert (batch["encoder_segment_ids"] > 0).all(), "the windows fill the rows"
    inputs, targets = (
        batch[f"{side}_tokens"][0][batch[f"{side.partition('_')[0]}_segment_ids"][0] > 0]
        for side in ("encoder_input", "decoder_target")
    )
    restored = names["objective"].restore(inputs, targets, vocab)
    np.testing.assert_array_equal(restored, text[0])
    assert float(names["nats"]) < 0.9 * np.log(vocab.size)


@pytest.mark.slow
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_the_script_of_a_data_loader_reads_each_row_once(context, tmp_path):
    pytest.importorskip("torch")
    script = SCRIPT.replace("num_workers=2", f"num_workers=2, multiprocessing_context={context!r}")
    script += (
        "        seen = [*seen, batch] if _ else [batch]\n"
        "    whole = cloze.batches(CONFIG, {'train.batch_size': 2 * ROWS})\n"
        "    for first, second, batch in zip(seen[::2], seen[1::2], whole):\n"
        "        for name, rows in batch.items():\n"
        "            assert ([*first[name].numpy(), *second[name].numpy()] == rows).all(), name\n"
    )
    (tmp_path / "script.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "torch.Size([8, 256])\n" * 4, done.stderr[-2000:]
    assert done.returncode == 0 and "deadlock" not in done.stderr, done.stderr[-2000:]
