"""Executors of a study's runs: processes on this machine, a Ray cluster, or SLURM."""
