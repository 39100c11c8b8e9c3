"""`export`: a classifier as one file for onnxruntime or torch, without ffcil.

The file contains the normalisation of the pixels, the network, the head and, with `anyarrival`, the calibration and the
novelty. It also contains the `description`, under the key `ffcil`: everything else that a program must know.
"""

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ffcil import __version__
from ffcil.atomic import named_errors
from ffcil.classifier.answers import FALSE_ALARMS
from ffcil.classifier.classifier import Classifier
from ffcil.data.decoding import LARGE, short_side_for
from ffcil.errors import InputError
from ffcil.serving.extras import check_installed
from ffcil.serving.unknown import novelty_limit
from ffcil.training.engine import evaluating

INPUT = "images"
"""Name of the input of the graph."""
OUTPUTS = ("scores", "novelty")
"""Names of the outputs of the graph. Methods without novelties have only the first one."""
MOST_IMAGES = 1024
"""Largest number of images in a call of an exported graph."""
TOLERANCE = 1e-3
"""Largest difference between an output of the classifier and of the exported file: relative for values above 1."""
SUFFIXES = (".onnx", ".pt2")
LARGEST_ONNX = 2**31 - 2**24
"""Largest size of the weights in an .onnx file, in bytes: a protobuf must be smaller than 2 GiB."""


class ClassifierGraph(nn.Module):
    """A classifier as a function of pixels: uint8 [B, size, size, 3] to scores [B, classes] and novelties [B]."""

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.learner = classifier.learner
        self.normalise = replace(classifier.learner.settings.augmentation, crop=None).plain

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        scores, novelty = self.learner.open_scores(self.normalise(images.permute(0, 3, 1, 2)))
        return (scores.softmax(dim=1),) if novelty is None else (scores.softmax(dim=1), novelty.float())


def description(classifier: Classifier, false_alarms: float = FALSE_ALARMS) -> dict[str, Any]:
    """What a program must know to use the exported graph."""
    size = classifier.size
    return {
        "ffcil": __version__,
        "method": classifier.config.method,
        "backbone": classifier.config.backbone,
        "version": classifier.version,
        "classes": list(classifier.class_names),
        "size": size,
        "short_side": short_side_for(size) if size >= LARGE else None,
        "novelty_limit": novelty_limit(classifier, false_alarms),
        "false_alarms": false_alarms,
    }


def export(classifier: Classifier, path: Path, false_alarms: float = FALSE_ALARMS) -> dict[str, Any]:
    """Write a classifier as `.onnx` or `.pt2`, and compare the scores of the file with its own.

    The classifier must be on the CPU. Returns the `description`, which is also in the file.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} has an unknown suffix: choose a name that ends in {' or '.join(SUFFIXES)}.")
    if not path.absolute().parent.is_dir():
        raise InputError(f"There is no folder {path.absolute().parent} for {path.name}: create it, or choose another.")
    if not classifier.class_names:
        raise InputError("The classifier knows no classes yet: teach it some first.")
    if path.suffix == ".onnx":
        check_installed("An export to ONNX", "export", "onnx", "onnxscript", "onnxruntime")
    about = description(classifier, false_alarms)
    graph, size = ClassifierGraph(classifier), classifier.size
    images = torch.randint(0, 256, (3, size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    draft = path.with_name(f".draft-{path.name}")
    try:
        with evaluating(graph):
            # before the export, because learners compute some tensors at the first call
            expected = [output[:2] for output in graph(images)]
            program = _export_graph(graph, images)
            write, run = (_write_onnx, _run_onnx) if path.suffix == ".onnx" else (_write_pt2, _run_pt2)
            write(program, draft, about)
            found = run(draft, images[:2])  # with another number of images than in the export
        _check(expected, found, path)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return about


def _export_graph(graph: nn.Module, images: Tensor) -> ExportedProgram:
    batch = Dim("batch", min=1, max=MOST_IMAGES)
    program = torch.export.export(graph, (images,), dynamic_shapes=({0: batch},), strict=False)
    # remove everything that predictions do not need: sums, a teacher, class means of exemplars
    signature, inputs = program.graph_signature, {node.name: node for node in program.graph.nodes}
    for spec in [spec for spec in signature.input_specs if not inputs[spec.arg.name].users]:
        program.graph.erase_node(inputs[spec.arg.name])
        signature.input_specs.remove(spec)
        for values in (program.state_dict, program.constants):
            values.pop(spec.target, None)
    program.graph_module.recompile()
    return program


def _write_pt2(program: ExportedProgram, path: Path, about: dict[str, Any]) -> None:
    buffer = BytesIO()  # torch aborts the process if it cannot write to a file, as on a full disk
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No complete tensor found")  # about tensors that are stored transposed
        torch.export.save(program, buffer, extra_files={"ffcil": json.dumps(about)})
    with named_errors(path):
        path.write_bytes(buffer.getbuffer())


def _run_pt2(path: Path, images: Tensor) -> Sequence[Tensor]:
    with path.open("rb") as file:
        outputs: Sequence[Tensor] = torch.export.load(file).module()(images)
    return outputs


def _write_onnx(program: ExportedProgram, path: Path, about: dict[str, Any]) -> None:
    weights = [value for value in (*program.state_dict.values(), *program.constants.values()) if torch.is_tensor(value)]
    if (size := sum(value.nbytes for value in weights)) > LARGEST_ONNX:
        raise InputError(f"The network has {size / 2**30:.1f} GiB, and an .onnx file at most 2: export it as .pt2.")
    outputs = OUTPUTS[: len(program.graph_signature.user_outputs)]
    program = program.run_decompositions({torch.ops.aten.logsumexp.default: _log_sum_exp})
    made = torch.onnx.export(program, input_names=[INPUT], output_names=outputs, dynamo=True, verbose=False)
    assert made is not None
    made.model.metadata_props["ffcil"] = json.dumps(about)
    made.save(path, external_data=False)


def _log_sum_exp(values: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """`torch.logsumexp`. The one of onnxruntime treats the first value as the largest one if it is -inf, and then
    underflows."""
    peak = values.amax(dim, keepdim=True)
    peak = peak.masked_fill(peak.isinf(), 0.0)
    found = (values - peak).exp().sum(dim, keepdim=True).log() + peak
    return found if keepdim else found.squeeze(*dim)


def _run_onnx(path: Path, images: Tensor) -> Sequence[Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(output) for output in session.run(None, {INPUT: images.numpy()})]


def _check(expected: Sequence[Tensor], found: Sequence[Tensor], path: Path) -> None:
    for name, right, wrong in zip(OUTPUTS, expected, found, strict=False):
        difference = float(((right - wrong).abs() / right.abs().clamp_min(1)).max())
        if not difference <= TOLERANCE:
            raise InputError(
                f"The {name} of {path.name} differ by {difference:.2g} from those of the classifier, so it was not "
                "kept: choose the other format, and report it."
            )
