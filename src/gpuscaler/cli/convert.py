"""``gpuscaler convert``: converts old manifests to API versions that are served now."""

import sys
from pathlib import Path

import click


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--image", default="", help="Image that replaces prometheus-adapter. Default: gpuscaler of this version.")
def convert(files: tuple[Path, ...], image: str) -> None:
    """Print the objects of FILES (- for standard input) in API versions that clusters serve now; list the changes on standard error.

    HorizontalPodAutoscalers become autoscaling/v2, workloads apps/v1, Ingresses networking.k8s.io/v1, APIServices and roles v1. Containers
    of prometheus-adapter run gpuscaler metrics instead, with the same flags and rules. Convert and apply all files together.
    """
    # Imported here, so that other commands start without YAML.
    from gpuscaler import __version__
    from gpuscaler.metrics.converting import converter

    objects = []
    for file in files:
        try:
            text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
            objects += converter.read(text)
        except (OSError, UnicodeDecodeError) as error:
            _refuse(file, f"saw {getattr(error, 'strerror', None) or error}, expected a file of text")
        except converter.ManifestError as error:
            _refuse(file, str(error))
    converted, notes = converter.convert(objects, image=image or f"gpuscaler:{__version__}")
    click.echo(converter.write(converted), nl=False)
    for note in notes:
        click.echo(f"{note.where}: {note.text}", err=True)


def _refuse(file: Path, message: str) -> None:
    click.echo(f"{file}: {message}", err=True)
    sys.exit(2)
