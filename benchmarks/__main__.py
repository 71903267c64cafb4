"""`python -m benchmarks`: the table of ratios to the reference protocol (see `benchmarks.throughput`)."""

from benchmarks.throughput import main

if __name__ == "__main__":
    main()
