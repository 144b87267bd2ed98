"""Tolerance policies as versioned data. Changing a number means a new file: old verdicts name the policy they had."""
