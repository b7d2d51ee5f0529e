"""The two GPU commands of BENCHMARKS.md, lowered for CUDA without a GPU: their whole steps, at their own sizes."""

import pathlib
import re
import shlex

import jax
import pytest

from benchmarks import step
from experiment.optimizer import make_optimizer
from run import sharding
from run.compiled_run import abstract_state, compiled_train_step, seed_array
from run.memory import abstract_batch

PAGE = pathlib.Path(__file__).parents[2] / "BENCHMARKS.md"


def commands():
    """The arguments of each `python -m benchmarks.step` of the section, and the flags of its peer by name."""
    section = PAGE.read_text().partition("## step: one GPU")[2].partition("\n## ")[0]
    found = []
    for line in section.replace("\\\n", " ").split("\n"):
        if line.startswith("    python -m benchmarks.step "):
            *arguments, peer = shlex.split(line)[3:]
            found.append((arguments, dict(re.findall(r"--(\w+)=(\S+)", peer.removeprefix("--peer=")))))
    return found


def lowered(arguments, monkeypatch):
    """The experiment of the command and its step, lowered for an NVIDIA GPU of the Hopper generation."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    monkeypatch.setattr("run.compiled_run.platform_of", lambda device: "hopper")
    monkeypatch.setattr("sys.argv", ["step", *arguments])
    experiment = step.parsed_experiment()
    mesh = sharding.make_mesh(experiment.mesh)
    rows = sharding.batch_sharding(mesh)
    state = abstract_state(experiment, mesh)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, state)
    optimizer = make_optimizer(experiment.optimizer, experiment.train.assumed_steps, experiment.model)
    train_step = compiled_train_step(experiment, optimizer, shardings, rows)
    traced = train_step.trace(state, abstract_batch(experiment, rows), seed_array(0))
    return experiment, traced.lower(lowering_platforms=("cuda",)).as_text()


def products(text):
    """The types of both factors of every matrix product."""
    return re.findall(r"stablehlo\.dot_general .* : \(tensor<(\S+)>, tensor<(\S+)>\) ->", text)


# Every result of a backward pass: the gradients of queries, keys, values and of a learned bias, and a workspace.
T5_STATES, T5_BIAS = "tensor<32x12x512x64xbf16>", "tensor<1x12x512x512xbf16>"
GPT_STATES = "tensor<8x16x2048x128xbf16>"
WORKSPACE = "tensor<0xui8>"
# Before JAX 0.11.1 the public call for cuDNN returns the gradient of a mask as well.
MASK = ["tensor<8x1x2048x2048xbf16>"] if jax.__version_info__ < (0, 11, 1) else []
CASES = {
    "encoder_decoder": {
        "sizes": (768, 12, 12, 2048, 32, 512),
        "backward": [  # self-attention of both stacks, and cross-attention
            ("fmhaScaleBiasSoftmaxBackward", "PADDING", [*[T5_STATES] * 3, T5_BIAS, WORKSPACE]),
            ("fmhaScaleBiasSoftmaxBackward", "PADDING_CAUSAL", [*[T5_STATES] * 3, T5_BIAS, WORKSPACE]),
            ("fmhaSoftmaxBackward", "PADDING", [*[T5_STATES] * 3, WORKSPACE]),
        ],
        # The buckets of relative distances times the bias of each bucket, of two stacks, and their gradients.
        "float32_products": 4,
    },
    "decoder_only": {
        "sizes": (2048, 20, 16, 8192, 8, 2048),
        "backward": [("fmhaScaleBiasSoftmaxBackward", "CAUSAL", [*[GPT_STATES] * 3, *MASK, WORKSPACE])],
        "float32_products": 0,
    },
}


@pytest.mark.parametrize(("arguments", "peer"), commands(), ids=["t5", "decoder"])
def test_the_step_of_a_gpu_command_lowers_to_cudnns_attention_and_bfloat16_products(arguments, peer, monkeypatch):
    """All layers are one lowered function, so each kind of attention is in it once, with its backward pass."""
    experiment, text = lowered(arguments, monkeypatch)
    model, case = experiment.model, CASES[experiment.model.architecture]
    sizes = (model.d_model, model.num_layers, model.num_heads, model.d_ff)
    assert (*sizes, experiment.train.batch_size, experiment.data.inputs_length) == case["sizes"]
    assert tuple(int(peer[name]) for name in ("d_model", "layers", "heads", "d_ff", "batch", "length")) == case["sizes"]
    assert (peer["arch"], int(peer["vocab"])) == (model.architecture, model.vocab_size)

    calls = []
    for line in text.splitlines():
        call = re.search(r"@__cudnn\$(\w+)\(.*mask_type\\22: \\22(\w+).* -> \(([^)]*)\)", line)
        if call:
            calls.append((call[1], call[2], call[3].split(", ")))
    assert text.count("@__cudnn$") == len(calls) == 2 * len(case["backward"])
    assert sorted(call for call in calls if call[0].endswith("Backward")) == case["backward"]

    of_vocabulary = [pair for pair in products(text) if any("32128" in factor for factor in pair)]
    # The gradients of states and table multiply the gradient of the logits in bfloat16.
    assert len(of_vocabulary) == 2 + 1 and all(factor.endswith("xbf16") for pair in of_vocabulary for factor in pair)
    in_float32 = [pair for pair in products(text) if any(factor.endswith("xf32") for factor in pair)]
    assert len(in_float32) == case["float32_products"]
    assert all("1023x32xf32" in pair or "12x1023xf32" in pair for pair in in_float32)
