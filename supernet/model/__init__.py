"""The student model: exactly the code that travels inside every exported checkpoint."""
