"""Reports: what a run or a comparison of runs came to, as one HTML page that needs nothing else, Markdown or JSON.

sources        a run read for a report: its figures, and a row for each of its rollouts
report         the one typed model from which all three are written
plots          what a report draws
trajectories   rollouts as the page's reader shows them, cut where they are huge
embedded       those of them that have room in the page, packed
page, markdown the page, put together from `assets`, and the Markdown
files          what is written where
"""
