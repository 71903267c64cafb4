"""The anatomy of encoders: where the parts of each family are. Only this package names them."""
