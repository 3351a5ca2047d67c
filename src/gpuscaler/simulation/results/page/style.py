"""The style of a report's page: on light and dark screens, and on paper. Nothing is fetched."""

#: Colours of series, on light and on dark background; distinguishable also for most colour-blind readers (after Okabe and Ito, "Color
#: universal design", 2008). Lines also differ in their dashes, and every band is labelled.
LIGHT = ("#0072b2", "#c44f00", "#00805d", "#b0538c", "#7a6200", "#2b8fc4", "#5b4db5", "#6e7781")
DARK = ("#58a6ff", "#ff8f4d", "#3fcf9f", "#eba3cc", "#e0c048", "#9bd4f5", "#b3a7f5", "#9da7b3")
SERIES = len(LIGHT)
DASHES = ("none", "8 3", "2 3", "10 3 2 3", "14 4", "5 2 1 2", "1 2", "3 6")

_GROUND = {"ink": "#24292f", "quiet": "#57606a", "ground": "#ffffff", "line": "#d0d7de", "used": "#2da44e", "paid": "#bf8700"}
_NIGHT = {"ink": "#e6edf3", "quiet": "#9da7b3", "ground": "#0d1117", "line": "#30363d", "used": "#3fb950", "paid": "#d29922"}


def _variables(ground: dict[str, str], series: tuple[str, ...]) -> str:
    named = {**ground, **{f"c{number}": colour for number, colour in enumerate(series)}}
    return " ".join(f"--{name}: {value};" for name, value in named.items())


def _series() -> str:
    return "\n".join(
        f".line{number} {{ stroke: var(--c{number}); stroke-dasharray: {DASHES[number]}; }} .fill{number} {{ fill: var(--c{number}); }}"
        for number in range(SERIES)
    )


STYLE = f"""
:root {{ color-scheme: light dark; {_variables(_GROUND, LIGHT)} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(_NIGHT, DARK)} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 64rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--ground);
  font: 15px/1.5 ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; overflow-wrap: break-word; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }}
h2 {{ font-size: 1.15rem; margin: 2.2rem 0 .6rem; }}
p, ul {{ margin: .4rem 0; }}
ul {{ padding-left: 1.2rem; }}
.quiet, figcaption, caption {{ color: var(--quiet); font-size: .9rem; }}
figure {{ margin: 0 0 1.2rem; }}
svg {{ display: block; width: 100%; height: auto; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; margin: 0 0 1rem; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; padding-bottom: .3rem; }}
th, td {{ padding: .22rem .9rem .22rem 0; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
  white-space: nowrap; }}
thead th {{ font-weight: 600; white-space: normal; vertical-align: bottom; }}
tbody th {{ font-weight: 400; }}
th.text, td.text, tbody th {{ text-align: left; }}
td.long {{ text-align: left; white-space: normal; }}
svg text {{ font: 13px ui-sans-serif, system-ui, 'Segoe UI', Helvetica, Arial, sans-serif; fill: var(--quiet); }}
svg .name {{ font-weight: 600; fill: var(--ink); }}
.grid {{ stroke: var(--line); stroke-width: 1; }}
.line {{ fill: none; stroke-width: 2; }}
.used {{ fill: var(--used); fill-opacity: .85; }}
.paid {{ fill: var(--paid); fill-opacity: .3; }}
.edge {{ fill: none; stroke: var(--paid); stroke-width: 1.5; }}
.wanted {{ fill: none; stroke: var(--ink); stroke-width: 1; stroke-dasharray: 2 2; }}
.bound {{ fill: none; stroke: var(--quiet); stroke-width: 1.5; stroke-dasharray: 6 4; }}
.band {{ stroke: var(--ground); stroke-width: .6; }}
.hatch {{ stroke: var(--ground); stroke-width: 1.6; }}
{_series()}
@media screen and (max-width: 40rem) {{ figure {{ overflow-x: auto; }} svg {{ min-width: 38rem; }} }}
@media print {{
  @page {{ margin: 14mm; }}
  body {{ max-width: none; padding: 0; font-size: 10pt; -webkit-print-color-adjust: exact; print-color-adjust: exact; }}
  h2, caption, thead {{ break-after: avoid; }}
  tbody tr:first-child {{ break-before: avoid; }}
  figure, tr {{ break-inside: avoid; }}
  figure svg {{ max-height: 225mm; }}
  thead {{ display: table-header-group; }}
  .scroll {{ overflow: visible; }}
  th, td {{ padding-right: .6rem; white-space: normal; }}
  table {{ font-size: 8.5pt; }}
}}
"""
