"""Many runs: the grid, the executors, the live view."""
