"""Where a study's runs are carried out: processes here, a Ray cluster, or SLURM."""
