"""What the import of the trainer does not import."""

import importlib.util
import subprocess
import sys

import pytest

from tests.train.subprocesses import ROOT


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_trainer_does_not_import_torch():
    """tensorboardX does where PyTorch is installed, which adds seconds to every start."""
    program = "import sys, train.main; assert 'torch' not in sys.modules; import torch; torch.ones(1)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=120)
