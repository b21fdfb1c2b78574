"""How wrong a wrong answer is: label trees, measures of mistakes under them, and trees found from features."""
