"""What a run leaves on disk, how it resumes, and how it proves itself.

    runs/<when>-<subject>/
      run.json  audit.json  report.html  junit.xml  card.md
      findings/<probe>.json  samples/<probe>.parquet  witnesses/<probe>.safetensors  figures/<probe>-<name>.svg
      aside/    what could not be believed and was asked again

`files` writes and reads them, `runs` finds the folder, `answers` keeps what was found, `chain` says whether every file
is still the one that was vouched for.
"""

from assay.store.answers import FORMAT, NotKept, TooLarge, find_answer, load_answer, save_answer
from assay.store.files import strict_json, turn, write_atomically
from assay.store.runs import open_run, slug

__all__ = [
    "FORMAT",
    "NotKept",
    "TooLarge",
    "find_answer",
    "load_answer",
    "open_run",
    "save_answer",
    "slug",
    "strict_json",
    "turn",
    "write_atomically",
]
