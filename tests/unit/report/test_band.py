"""The picture of several runs stands on its own."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from skyrl_apex_plugin.report.charts import Band, band_svg

SVG = "{http://www.w3.org/2000/svg}"


def points(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]  # type: ignore[misc]


def test_every_run_has_a_line_and_every_band_their_mean() -> None:
    bands = [
        Band("learns <fast>", [[(0, 0.2), (10, 0.8)], [(0, 0.4), (10, 1.0)]]),
        Band("control", [[(0, 0.3), (10, 0.3)]]),
    ]
    root = ElementTree.fromstring(band_svg("Pass rate & step", bands))
    lines = list(root.iter(f"{SVG}polyline"))
    assert len(lines) == 3 + 2
    first, second, mean = (points(line) for line in lines[:3])
    for a, b, middle in zip(first, second, mean, strict=True):
        assert middle == (a[0], pytest.approx((a[1] + b[1]) / 2, abs=0.1))
    assert mean[1][1] < mean[0][1], "a rising rate must rise in the picture"
    assert points(lines[4])[0][1] == points(lines[4])[1][1]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"Pass rate & step", "learns <fast>", "control"} <= set(texts)


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match="'Empty': no run has a value"):
        band_svg("Empty", [Band("a", [])])
