"""Networks, tuners, heads and closed-form classifiers. They know nothing of methods."""
