"""Knowledge distillation: model outputs, losses, objectives, teachers, data, and the training loop."""
