"""What goes beyond the paper: one idea a file, each of which can be deleted. They enter LatentEBM by its starts, its
base and its chains."""
