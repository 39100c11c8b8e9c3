"""Executors of a study's runs: processes on this machine, a Ray cluster, or SLURM.

With Ray and SLURM, the study's folder and the data sets must be on a file system that every node sees under the same
path.
"""
