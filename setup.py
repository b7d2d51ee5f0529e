"""Package metadata. Tool settings (build backend, ruff, pytest) are in pyproject.toml."""

import pathlib

from setuptools import find_packages, setup

HUGGINGFACE = ["safetensors>=0.4", "tokenizers>=0.21", "sentencepiece>=0.2"]
LM_EVAL = ["lm-eval>=0.4.13"]
WANDB = ["wandb>=0.31"]
TRACKIO = ["trackio>=0.43"]
HF = ["datasets>=4.0"]
LINEAR = ["scikit-learn>=1.5"]
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.6,<10"]
TEST = [
    "pytest>=8",
    "pytest-xdist>=3.8",
    "hypothesis>=6.100",
    "sentencepiece>=0.2",
    "matplotlib>=3.8",
    "jinja2>=3.1",
    "ruff>=0.6",
    "mypy>=1.13",
    "s3fs>=2025.3",
    "moto[server]>=5",
    *HUGGINGFACE,
    *LINEAR,
]
# What the tests of exports, imports, adapters and trackers compare with. Without this extra they are skipped.
INTEROP = [
    "torch>=2.6",
    "transformers>=5.0",
    "accelerate>=1.0",  # lm-eval's Hugging Face model imports it
    "nbclient>=0.10",
    "ipykernel>=6.29",
    "uv>=0.9",  # resolves the commands for Colab
    *LM_EVAL,
    *WANDB,
    *TRACKIO,
    *HF,
    *DOCS,
]

# The packages are top-level by design (`python -m train.main`, `from objectives import OBJECTIVES`): the project is
# used from a clone with `pip install -e .`. No wheel is meant to be published.
setup(
    name="cloze",
    version="0.1.0",
    description="Language-model pre-training objectives in JAX: CLM, MLM, span corruption, prefix LM, UL2",
    long_description=pathlib.Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(exclude=["tests*"]),
    package_data={"studies": ["*.md.jinja"]},
    install_requires=[
        "absl-py>=2.1",
        # The oldest that were tried, so that pip keeps an accelerator's JAX that is installed (docs/dependencies.md).
        "jax>=0.9.0",
        "flax>=0.12.5",
        "optax>=0.2.8",
        "fsspec>=2025.3",
        "orbax-checkpoint>=0.12.8",
        "grain>=0.2.18",
        "ml-collections>=1.1.0",
        "tensorflow-datasets>=4.9.10",
        # Required by tensorflow-datasets and by Grain as well.
        "pyarrow>=17",
        "array_record>=0.8.1; sys_platform != 'win32'",
        "protobuf>=5.28.3",
        "rich>=13",
        "tensorboardX>=2.6",
        "numpy>=2.0",
        "scipy>=1.15",
        "datasketch>=2.0",
        "filelock>=3.12",
    ],
    extras_require={
        "cuda": ["jax[cuda12]>=0.9.0"],
        "tpu": ["jax[tpu]>=0.9.0"],
        "sentencepiece": ["sentencepiece>=0.2", "protobuf>=4"],
        "plot": ["matplotlib>=3.8", "jinja2>=3.1"],
        "gcs": ["etils[epath]", "gcsfs>=2025.3"],
        "s3": ["s3fs>=2025.3"],
        "beam": ["apache-beam>=2.70"],
        "huggingface": HUGGINGFACE,
        "lm_eval": LM_EVAL,
        "wandb": WANDB,
        "trackio": TRACKIO,
        "hf": HF,
        "linear": LINEAR,
        "docs": DOCS,
        "test": TEST,
        "interop": INTEROP,
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
