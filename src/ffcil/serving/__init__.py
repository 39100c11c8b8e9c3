"""A classifier for other programs: as one file in a common format, and as a service over HTTP."""
