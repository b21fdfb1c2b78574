"""What stands in the shipped ledger fits the claims of today, where they are still what was tested."""

from __future__ import annotations

from assay.jobs import claims as ledger


def test_a_published_number_names_a_measure_of_its_own_unit() -> None:
    fresh = [t for t in ledger.told(ledger.SHIPPED) if t.entry is not None and not t.stale]
    for told in fresh:
        units = {m.name: m.unit for m in told.measures}
        for printed in told.claim.published:
            if printed.measured:
                assert units.get(printed.measured) == printed.unit, (told.id, printed.what)
            assert units.get(printed.what, printed.unit) == printed.unit, (told.id, printed.what)


def test_records_are_of_claims_that_there_are() -> None:
    assert set(ledger.read(ledger.SHIPPED)) <= set(ledger.claims())


def test_code_behind_every_claim_on_the_shelf_is_of_its_own_file() -> None:
    """Of a study with settings (`partial`), that of functools was taken: another on each Python, and never stale."""
    for name, each in ledger.claims().items():
        assert ledger._module(each) == f"assay.claims.{name.partition('/')[0].replace('-', '_')}", name
