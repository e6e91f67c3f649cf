"""Learning: the function `train`, the loop around `update`, and what a run writes.

The room is called `training` because `lebm.train` is the function.
"""
