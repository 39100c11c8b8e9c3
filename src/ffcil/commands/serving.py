"""`ffcil export` and `ffcil serve`: a classifier for other programs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ffcil.commands.classifier import loaded
from ffcil.commands.options import (
    AsJson,
    Assignments,
    Device,
    FalseAlarms,
    Imports,
    Model,
    import_methods,
    parse_share,
)
from ffcil.commands.output import print_json, stoppable


def export(
    model: Model,
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="File to write: NAME.onnx or NAME.pt2.")],
    false_alarms: FalseAlarms = None,
    assignments: Assignments = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Write a classifier as one file that programs without ffcil can use.

    An .onnx file needs only onnxruntime, a .pt2 file only torch. The file contains the network, the head, the class
    names and the limit for unknown images, and is compared with the classifier before it is kept.
    """
    from ffcil.classifier.answers import FALSE_ALARMS
    from ffcil.serving.export import export as write

    rate = FALSE_ALARMS if false_alarms is None else parse_share(false_alarms, "--false-alarms")
    with loaded(model, assignments, "cpu", imports) as classifier:
        about = write(classifier, to, rate)
    if as_json:
        print_json(about)
    else:
        unknown = "tells unknown images" if about["novelty_limit"] is not None else "does not tell unknown images"
        print(f"{to}: {len(about['classes'])} classes, version {about['version']}, {unknown}")


def serve(
    model: Model,
    port: Annotated[int, typer.Option(help="Port; 0 chooses a free one.", min=0, max=65535)] = 8000,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 is reachable from other machines.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with a token; clients that send it may teach the classifier."),
    ] = None,
    false_alarms: FalseAlarms = None,
    assignments: Assignments = None,
    device: Device = None,
    imports: Imports = None,
) -> None:
    """Serve a classifier over HTTP, with a page for browsers at / and a description of all paths at /docs.

    It learns in the background while the version before answers, and follows changes by other commands. Ctrl-C and
    SIGTERM end it with status 0, after the requests that it has received.
    """
    from ffcil.serving.extras import check_installed

    check_installed("ffcil serve", "serve", "fastapi", "uvicorn", "python_multipart")
    from ffcil.classifier.answers import FALSE_ALARMS
    from ffcil.serving.server import bind, make_server, read_token
    from ffcil.serving.service import Service

    import_methods(imports)
    token = read_token(token_file) if token_file else None
    rate = FALSE_ALARMS if false_alarms is None else parse_share(false_alarms, "--false-alarms")
    with bind(host, port) as reserved, stoppable(remedy=""):
        service = Service(model, device, rate, imports=imports or (), assignments=assignments or ())
        address = f"[{host}]" if ":" in host else host
        learning = "learns with the token" if token else "does not learn (see --token-file)"
        known = f"version {service.snapshot.version}, {len(service.snapshot.classes)} classes"
        print(f"{model} ({known}) at http://{address}:{reserved.getsockname()[1]}, {learning}", flush=True)
        server = make_server(service, token)
        try:
            server.run(sockets=[reserved])
        except KeyboardInterrupt:  # uvicorn raises the signal again after it has answered what it was asked
            if server.force_exit:
                raise
            print(f"ffcil: the service of {model} has ended.", file=sys.stderr)
