"""ONNX models of students: export, int8, inference."""
