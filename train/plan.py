"""The command `python -m train.plan`."""

import runpy

if __name__ == "__main__":
    runpy.run_module("plan", run_name="__main__")
