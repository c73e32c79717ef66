"""Speed lives here; correctness lives in tests."""
