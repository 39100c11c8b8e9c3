"""Parts that methods are composed of."""
