"""Export of a trained student: Hugging Face folder, model card, ONNX, int8, ordinary form, latency table."""
