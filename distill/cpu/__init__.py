"""Optimizations for training on CPUs: memory allocation, dropout and attention.

Each module says what it buys, measured in processor time on one thread with torch 2.13.
"""
