"""What goes beyond the paper. Each idea has a file, and some share one. They enter LatentEBM by its starts, its base
and its chains, so the paper's files do not know them."""
