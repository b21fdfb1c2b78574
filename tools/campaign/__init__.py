"""The parts of the fault campaign, which `tools/faults.py` runs."""
