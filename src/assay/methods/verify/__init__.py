"""Who is let in: learners that err on one side."""
