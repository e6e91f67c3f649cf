"""Numbers from arrays. Pure functions with exact oracles; they know no model and no run."""
