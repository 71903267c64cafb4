"""The student model: exactly the code that ships inside every exported checkpoint."""
