"""The report of a job: one HTML file that needs nothing else, and its curves as a PNG.

gather   everything it shows, by queries and downloads
tokens   token ids -> prompt, calls, results, answer
curves   which charts, from which numbers       charts   numbers -> SVG
page     everything -> HTML (`page.css`, `page.js` inlined)
picture  curves -> PNG, where matplotlib is installed
"""

from __future__ import annotations

from pathlib import Path

from temper.client.report.gather import Gatherer, Material
from temper.client.report.page import page
from temper.client.report.picture import available, write_png
from temper.client.sdk.aio import AsyncClient
from temper.runtime.errors import Rejected

__all__ = ["write_report"]


async def write_report(
    client: AsyncClient, job_id: str, path: Path, *, job_file: str | None = None, png: Path | None = None
) -> list[Path]:
    """Write the page to `path` and the curves to `png` (default: beside the page, if matplotlib is installed).

    Returns the files written, the page first. Raises TemperError if the job cannot be had or a file not be written.
    """
    material = await Gatherer(client, job_id).gather(job_file)
    return _write(material, path, png)


def _write(material: Material, path: Path, png: Path | None) -> list[Path]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(material))
        if png is None and not (available() and material.steps):
            return [path]
        picture = png or path.with_suffix(".png")
        write_png(material, picture)
    except OSError as error:
        raise Rejected(
            f"{error.filename or path} cannot be written: {error.strerror}", field="file"
        ) from None
    return [path, picture]
