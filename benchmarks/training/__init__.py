"""What the choices of a training bring: objectives, experts, teachers, warm-up."""
