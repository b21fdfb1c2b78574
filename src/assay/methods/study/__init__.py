"""How much a result depends on the person who tunes it: one task, fifteen knobs, many tuners, the tests."""
