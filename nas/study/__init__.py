"""The Optuna studies of a search: ledger, storage, lock and folder."""
