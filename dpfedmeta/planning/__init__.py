"""Build a run's plan from its settings, one file per question, or say why there can be no plan."""
