"""What a stage searches and what it may spend: spaces, budgets, baselines, finalists."""
