"""The bill of materials of an audit: model, data and the packages behind the numbers, as CycloneDX 1.6 JSON.

The library that writes it has no words for model cards and data sets, so these two are put in afterwards; the tests
hold the whole against the schema that the library ships.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

from assay.errors import MissingExtra
from assay.report.words import printable

if TYPE_CHECKING:
    from assay.audit import Audit
    from assay.store.files import Content

VERSION = re.compile(r"\d+(\.\w+)+")
"""What of an audit's environment is a package with its version, and not a machine or a device, begins like this."""


def bill(audit: Audit, when: str, model: Content | None, data: Content | None) -> bytes:
    """The bytes of bom.cdx.json; digests of files stand in it where model and data were given."""
    try:
        from cyclonedx.model import Property
        from cyclonedx.model.bom import Bom
        from cyclonedx.model.component import Component, ComponentType
        from cyclonedx.output.json import JsonV1Dot6
        from packageurl import PackageURL
    except ImportError:
        raise MissingExtra.of("A seal", "cyclonedx-python-lib", "seal") from None

    told = audit.subject
    the_model = Component(
        name=printable(told.name),
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref="model",
        description=printable(told.about) or None,
        hashes=_hashes(model),
        properties=[
            Property(name="assay:fingerprint", value=told.fingerprint),
            Property(name="assay:parameters", value=str(told.parameters)),
            *_of_files(model),
        ],
    )
    splits = [
        Component(
            name=printable(name),
            type=ComponentType.DATA,
            bom_ref=f"data-{at}",
            properties=[
                Property(name="assay:fingerprint", value=told.data[name]),
                Property(name="assay:inputs", value=str(size)),
            ],
        )
        for at, (name, size) in enumerate(told.splits.items())
    ]
    files = [
        Component(
            name=printable(data.name),
            type=ComponentType.DATA,
            bom_ref="data-files",
            hashes=_hashes(data),
            properties=_of_files(data),
        )
    ] if data else []  # fmt: skip
    packages = [
        Component(
            name=name,
            version=version,
            type=ComponentType.PLATFORM if name == "python" else ComponentType.LIBRARY,
            bom_ref=f"{name}-{version}",
            purl=PackageURL("generic" if name == "python" else "pypi", name=name, version=version),
        )
        for name, version in sorted(_versions(audit))
    ]
    bom = Bom(components=[*splits, *files, *packages])
    bom.metadata.component = the_model
    bom.metadata.timestamp = datetime.fromisoformat(when)
    bom.metadata.tools.components.add(
        Component(name="assay", version=audit.environment.get("assay"), type=ComponentType.APPLICATION)
    )
    bom.register_dependency(the_model, [*splits, *files, *packages])
    document = json.loads(JsonV1Dot6(bom).output_as_string())
    document["metadata"]["component"]["modelCard"] = _card(audit)
    for component in document["components"]:
        if component["type"] == "data":
            component["data"] = [{"type": "dataset", "name": component["name"]}]
    return json.dumps(document, indent=1, allow_nan=False).encode()


def _hashes(found: Content | None) -> list[Any]:
    """A digest is CycloneDX's to state only of one file; a folder has its digest of digests among the properties."""
    from cyclonedx.model import HashAlgorithm, HashType

    single = found is not None and found.single
    return [HashType(alg=HashAlgorithm.SHA_256, content=d) for d in found.files.values()] if found and single else []


def _of_files(found: Content | None) -> list[Any]:
    from cyclonedx.model import Property

    if found is None:
        return []
    return [
        Property(name="assay:files", value=str(len(found.files))),
        Property(name="assay:sha256_of_digests", value=found.root),
    ]


def _versions(audit: Audit) -> set[tuple[str, str]]:
    """Of every answer: one that was known from before may have been found with other versions."""
    found = [audit.environment, *(row.answer.environment for row in audit.rows)]
    return {(name, v) for known in found for name, v in known.items() if VERSION.match(v)}


def _card(audit: Audit) -> dict[str, Any]:
    """CycloneDX's model card: the task, its data, every number with its interval, and what speaks against the model."""
    told = audit.subject
    shape = " x ".join(map(str, told.shape))
    return {
        "modelParameters": {
            "task": told.task.lower(),
            "datasets": [{"ref": f"data-{at}"} for at in range(len(told.splits))],
            "inputs": [{"format": f"{shape}, values from {told.low:g} to {told.high:g}"}],
            "outputs": [{"format": printable(", ".join(told.classes)) or told.task.lower()}],
        },
        "quantitativeAnalysis": {"performanceMetrics": list(_metrics(audit))},
        "considerations": {"technicalLimitations": list(_limitations(audit))},
    }


def _metrics(audit: Audit) -> Iterator[dict[str, Any]]:
    for row in audit.rows:
        for m in row.answer.finding.measures if row.answer.finding else ():
            if m.value is None:
                continue
            metric: dict[str, Any] = {
                "type": printable(
                    f"{row.answer.probe}: {m.name}" + (f" ({m.unit})" if m.unit not in ("", "%") else "")
                ),
                "value": f"{m.value:.6g}",
            }
            if m.low is not None and m.high is not None:
                metric["confidenceInterval"] = {"lowerBound": f"{m.low:.6g}", "upperBound": f"{m.high:.6g}"}
            yield metric


def _limitations(audit: Audit) -> Iterator[str]:
    for alarm in audit.alarms:
        yield printable(alarm.says)
    for row in audit.rows:
        for judgement in row.judgements:
            if judgement.verdict != "pass":
                yield printable(f"{row.answer.probe}: {judgement.verdict}: {judgement.why}")
        for alarm in row.answer.finding.alarms if row.answer.finding else ():
            yield printable(f"{row.answer.probe}: {alarm.says}")
