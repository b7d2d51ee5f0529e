"""The style sheet of train.show's HTML page, in parts, which the documentation's site uses too."""

# Colors of a light and of a dark page.
LIGHT = """\
--ground: #fff; --text: #1c1e21; --dim: #666e79; --line: #d8dce2; --panel: #f5f6f8;
--sentinel: #a3178f; --mask: #fbe28a; --mode: #1f5fbf; --eos: #147a3d; --random: #c8281e; --kept: #1f5fbf;
--read: #a9b4c2; --scored: #1c1e21;
"""
DARK = """\
--ground: #14161a; --text: #e3e6ea; --dim: #98a1ad; --line: #343a43; --panel: #1d2026;
--sentinel: #f08be0; --mask: #6b5710; --mode: #2f6fd0; --eos: #62d08f; --random: #ff8078; --kept: #86b6ff;
--read: #566070; --scored: #e3e6ea;
"""
RULES = """\
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1rem 1.25rem 4rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: .5rem 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 0 0 .5rem; }
h4 { font-size: .95rem; margin: 1.25rem 0 0; }
h5 { font-size: .8rem; font-weight: 600; color: var(--dim); margin: .5rem 0 .15rem; }
small { color: var(--dim); font-size: .8rem; font-weight: normal; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.25rem; margin: 0; }
dt, .facts { color: var(--dim); }
dd { margin: 0; overflow-wrap: anywhere; }
.facts { margin: 0; font-size: .85rem; }
.warning { color: var(--random); font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; }
th, td { padding: .3rem .9rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { color: var(--dim); font-weight: normal; font-size: .85rem; }
.w { white-space: nowrap; }
.n, thead th[title] { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td small { display: block; }
.off { color: var(--random); font-weight: 600; }
article { border: 1px solid var(--line); border-radius: 8px; padding: .9rem 1.1rem 1.1rem; margin: 1rem 0; }
pre { margin: 0; padding: .5rem .7rem; background: var(--panel); border-radius: 6px; tab-size: 4;
  font: 13px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
pre small { font-family: inherit; }
u { text-decoration: underline; text-decoration-thickness: 2px; text-underline-offset: 3px;
  text-decoration-color: color-mix(in srgb, currentColor 55%, transparent); }
i { font-style: normal; color: var(--dim); opacity: .65; user-select: none; }
.sentinel, .mask, .mode, .eos, .special { white-space: nowrap; }
.sentinel { color: var(--sentinel); font-weight: 600; }
.mask { background: var(--mask); border-radius: 3px; font-weight: 600; }
.mode { background: var(--mode); color: #fff; border-radius: 3px; padding: 0 .2em; font-weight: 600; }
.eos, .special { color: var(--eos); font-weight: 600; }
.random { color: var(--random); font-weight: 700; }
.kept { color: var(--kept); font-weight: 700; }
.strip { display: grid; grid-template-columns: 4.5rem 1fr 14rem; gap: .75rem; align-items: center; margin: .2rem 0;
  font-size: .8rem; color: var(--dim); }
.strip div { display: flex; height: .8rem; background: var(--panel); border: 1px solid var(--line); }
.strip b.begins { border-left: 2px solid var(--random); }
.s1 { background: var(--read); }
.s2 { background: var(--scored); }
.bar { display: inline-flex; width: 1.6rem; height: .7rem; background: var(--panel); border: 1px solid var(--line);
  vertical-align: -1px; }
.bar b { width: 100%; }
details { margin-top: 1rem; }
summary { cursor: pointer; font-size: .85rem; color: var(--dim); }
.pictures { display: flex; flex-wrap: wrap; gap: 1.25rem; margin: .75rem 0 .5rem; }
figure { margin: 0; flex: 0 1 20rem; }
img { display: block; width: 100%; image-rendering: pixelated; border: 1px solid var(--line); }
figcaption { font-size: .8rem; color: var(--dim); margin-top: .25rem; }
@media (max-width: 40rem) {
  .strip { grid-template-columns: 4rem 1fr; }
  .strip span:last-child { grid-column: 2; }
}
"""
CSS = f"""\
:root {{
color-scheme: light dark;
{LIGHT}}}
@media (prefers-color-scheme: dark) {{
:root {{
{DARK}}}
}}
{RULES}"""
