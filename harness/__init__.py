"""What benchmarks, evaluations and examples share. Not installed."""
