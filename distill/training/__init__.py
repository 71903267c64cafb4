"""Training by distillation: the loop and its recipe, teachers and their saved outputs, evaluation."""
