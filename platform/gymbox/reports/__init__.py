"""Reports: what a run or a comparison of runs came to, as one HTML page that needs nothing else, Markdown or JSON.

`report` is the one typed model from which all three are written. `sources` reads a run once, for its figures and a row
of each rollout; `plots` has what is drawn. `trajectories` makes of a rollout what the page shows, `recorded` tells how
far a failed one came and `judgements` what its judge was asked; `embedded` packs them. `page`, from `assets`, and
`markdown` are written by `files`.
"""
