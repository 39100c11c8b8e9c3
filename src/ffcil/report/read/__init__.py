"""Reading: runs as values, and the parts of the frameworks that they used."""
