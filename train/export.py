"""The command `python -m train.export`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("huggingface.export", run_name="__main__")
