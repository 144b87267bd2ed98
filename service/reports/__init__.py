"""Submissions as documents for programs: JSON, JUnit, and what the store knows beside them."""
