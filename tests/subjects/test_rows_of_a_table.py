"""What the columns of a table are taken for once the bounds are told."""

from __future__ import annotations

from assay.data.table import Table
from assay.subject import InputSpace
from assay.subjects._assembly import _row


def test_bounds_widen_what_is_counted_and_leave_codes_as_they_are(tmp_path):
    (tmp_path / "t.csv").write_text(
        "a,b,flag,word,y\n" + "1,0.5,true,red,0\n50,2.5,false,blue,1\n90,7,true,green,0\n" * 9
    )
    row = _row({"test": Table(tmp_path / "t.csv", "y")}, InputSpace((4,), 0.0, 100.0), ("word",))
    assert row is not None
    assert [(c.type, c.low, c.high, c.fixed) for c in row.columns] == [
        ("integer", 0.0, 100.0, False),
        ("number", 0.0, 100.0, False),
        ("boolean", 0.0, 1.0, False),
        ("category", 0.0, 2.0, True),
    ]
    assert row.reach.choices.tolist() == [0, 0, 2, 3]
