"""From a class-arrival schedule to a comparison table in a dozen lines. It takes about a minute on a CPU core:

python examples/schedule_to_table.py
"""

import rich

import ffcil
from ffcil.report import compare, load_run, terminal_table

schedule = ffcil.free_flow(classes=12, steps=5, smallest=1, largest=5, alpha=1.0, order="jumbled", seed=1)
print(schedule.draw())
folders = []
for framework in ("none", "paper"):
    fields = {"method": "icarl", "arrivals": {"sizes": schedule.sizes}, "framework": framework}
    config = ffcil.resolve("glyphs", fields)
    folders.append(ffcil.Run(config, device="cpu").execute()["folder"])
rich.print(terminal_table(compare([load_run(folder) for folder in folders])))
