"""An SVG of what a set of tasks is made of."""

from __future__ import annotations

from collections.abc import Sequence

from skyrl_apex_plugin.data.statistics import Statistics

TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" width="720" height="{{ height }}" \
viewBox="0 0 720 {{ height }}" font-family="sans-serif" font-size="12">
<rect width="720" height="{{ height }}" fill="#fff"/>
{%- for chart in charts %}
<g transform="translate(0 {{ chart.top }})">
<text x="16" y="16" font-size="14" font-weight="bold">{{ chart.title }}</text>
{%- for label, value, share in chart.bars %}
<text x="196" y="{{ 38 + 20 * loop.index0 }}" text-anchor="end">{{ label }}</text>
<rect x="204" y="{{ 27 + 20 * loop.index0 }}" width="{{ '%.1f' % (440 * share) }}" height="14" \
fill="#4269d0"/>
<text x="{{ '%.1f' % (210 + 440 * share) }}" y="{{ 38 + 20 * loop.index0 }}">{{ value }}</text>
{%- endfor %}
</g>
{%- endfor %}
</svg>
"""


def draw(figures: Statistics) -> str:
    """Bars of tasks by world kind, by number of criteria and by prompt length."""
    from jinja2 import Environment

    charts = []
    top = 8
    for title, counts in (
        (f"{figures.tasks} tasks in {figures.worlds} worlds, by kind", list(figures.kinds.items())),
        ("Criteria of a task", histogram(figures.criteria_counts)),
        ("Characters of a prompt", histogram(figures.prompt_lengths)),
    ):
        most = max(count for _, count in counts)
        bars = [(label, count, count / most) for label, count in counts]
        charts.append({"title": title, "bars": bars, "top": top})
        top += 40 + 20 * len(bars)
    return Environment(autoescape=True).from_string(TEMPLATE).render(charts=charts, height=top)


def histogram(values: Sequence[int], bins: int = 8) -> list[tuple[str, int]]:
    """Counts in at most ``bins`` ranges of whole numbers, labelled ``from to``."""
    low, high = min(values), max(values)
    width = max(-(-(high - low + 1) // bins), 1)
    counts = [0] * (-(-(high - low + 1) // width))
    for value in values:
        counts[(value - low) // width] += 1
    starts = range(low, low + width * len(counts), width)
    return [
        (f"{start}" if width == 1 else f"{start} to {start + width - 1}", count)
        for start, count in zip(starts, counts, strict=True)
    ]
