"""The command `python -m train.board`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("studies.board", run_name="__main__")
