"""The student model: exactly the code that ships inside every exported checkpoint. So these files import torch,
transformers and each other, and nothing else of this project.
"""
