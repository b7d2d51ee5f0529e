"""Hugging Face folders are read as safetensors alone, and what cannot be read is one line that names the file."""

import json

import numpy as np
import pytest

from contract.errors import ConfigError
from huggingface.folder import is_huggingface_folder, open_folder, write_weights
from workdir.run_config import write_config

pytest.importorskip("safetensors")
TENSORS = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b.weight": np.full(3, 0.1, np.float32)}


def make_folder(path, dtype="float32"):
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"model_type": "t5"}))
    write_weights(path, TENSORS, dtype)
    return path


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_tensors_round_trip_as_float32(tmp_path, dtype):
    folder = open_folder(make_folder(tmp_path / "f", dtype), "--from=f")
    assert set(folder.tensors) == set(TENSORS)
    assert all(tensor.dtype == np.float32 for tensor in folder.tensors.values())
    np.testing.assert_array_equal(folder.tensors["a.weight"], TENSORS["a.weight"])
    # 0.1 has 24, 8 or 11 significant bits.
    error = {"float32": 0, "bfloat16": 2**-12, "float16": 2**-15}[dtype]
    np.testing.assert_allclose(folder.tensors["b.weight"], TENSORS["b.weight"], rtol=0, atol=error)
    assert (folder.tensors["b.weight"] == TENSORS["b.weight"]).all() == (dtype == "float32")


def test_the_files_of_an_index_are_read(tmp_path):
    from safetensors.numpy import save_file

    folder = make_folder(tmp_path / "f")
    (folder / "model.safetensors").unlink()
    for name, tensor in TENSORS.items():
        save_file({name: tensor}, folder / f"{name}.safetensors")
    index = {"weight_map": {name: f"{name}.safetensors" for name in TENSORS}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    np.testing.assert_array_equal(open_folder(folder, "--from=f").tensors["b.weight"], TENSORS["b.weight"])
    for weight_map in ({"b.weight": "../b.weight.safetensors"}, {"b.weight": 1}, ["b.weight"], None):
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(ConfigError, match=r"index.json has no weight_map of names of files: download it again"):
            open_folder(folder, "--from=f")


def test_a_value_beyond_float16_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--dtype=float16 cannot hold a, whose largest value is 70000: use"):
        write_weights(tmp_path, {"a": np.array([1.0, -70000.0], np.float32)}, "float16")


def truncate(path):
    path.write_bytes(path.read_bytes()[:-5])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "config.json").unlink(), "has no config.json: name a folder that"),
        (lambda f: (f / "config.json").write_text('{"model_type": "t5"'), "config.json cannot be read: Expecting"),
        (lambda f: truncate(f / "model.safetensors"), "model.safetensors is truncated or not a safetensors file"),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            "has weights in pytorch_model.bin alone, and no model.safetensors; pickled files can run any code",
        ),
        (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors and no model.safetensors.index.json"),
    ],
)
def test_what_cannot_be_read_is_one_line(tmp_path, change, message):
    folder = make_folder(tmp_path / "f")
    change(folder)
    with pytest.raises(ConfigError) as error:
        open_folder(folder, "--from=f")
    assert str(error.value).startswith("--from=f") and message in str(error.value)
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize("dtype", ["F8_E4M3", "I8", "U8", "BOOL"])
def test_types_that_are_not_those_of_weights_are_one_line(tmp_path, dtype):
    folder = make_folder(tmp_path / "f")
    header = json.dumps({"a.weight": {"dtype": dtype, "shape": [2, 3], "data_offsets": [0, 6]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(6))
    message = f"--from=f: tensor a.weight of model.safetensors has the type {dtype}, and weights are read as F64,"
    with pytest.raises(ConfigError, match=message) as error:
        open_folder(folder, "--from=f").tensors["a.weight"]
    assert len(str(error.value).splitlines()) == 1


def test_folders_of_runs_are_not_hugging_faces(tmp_path, monkeypatch):
    write_config(tmp_path / "run", {"data": {}, "model": {}, "train": {}})
    assert not is_huggingface_folder(tmp_path / "run")
    assert not is_huggingface_folder(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="--from=nowhere is not a folder"):
        open_folder(tmp_path / "nowhere", "--from=nowhere")
    assert is_huggingface_folder(make_folder(tmp_path / "f"))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert is_huggingface_folder("~/f")
