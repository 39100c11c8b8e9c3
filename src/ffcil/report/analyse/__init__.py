"""Analysis of runs: groups, comparisons and statistics as plain values, independent of any output format."""
