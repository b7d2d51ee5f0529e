"""The command `python -m train.convert`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("huggingface.convert", run_name="__main__")
