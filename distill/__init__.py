"""Knowledge distillation: outputs, losses, objectives, the teacher, the data and the one training loop."""
