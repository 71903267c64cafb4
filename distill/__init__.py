"""Knowledge distillation: model outputs, losses, objectives, teachers, data, and the training loop."""

from foundation.packages import check_packages

DISTRIBUTION = "ffn-nas"

check_packages(__name__)
