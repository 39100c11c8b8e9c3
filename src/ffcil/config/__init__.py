"""The typed settings of a run, recipes, and configuration files of PyCIL and PILOT."""
