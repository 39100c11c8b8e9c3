"""A method learns a stream step by step in your own loop, without files, for notebooks and your own measurements. The
results are those of a run with the same configuration.

python examples/step_by_step.py
"""

import ffcil
from ffcil.metrics import CountTable, average_accuracy, forgetting
from ffcil.runs.run import augmentation_of

schedule = ffcil.given_arrivals([2, 1, 4])
config = ffcil.resolve("glyphs", {"method": "icarl", "train": {"epochs_scale": 0.02}})
data = ffcil.load_dataset("glyphs")  # or ffcil.dataset_of(train, test) of your own torch data sets
engine = ffcil.Engine.create("cpu", config.train)
learner = ffcil.build_learner(config, augmentation_of(config, data.augmentation), engine)
counts = []
for increment in ffcil.Stream(data.train, data.test, schedule, config.class_seed).to(engine.device):
    learner.learn(increment)
    confusion = ffcil.evaluate(learner, increment)[learner.scored]
    counts.append(confusion)
    new = confusion.accuracy(slice(increment.seen_before, increment.seen_now))
    print(
        f"step {increment.step}: {confusion.accuracy():.1f} % of {increment.seen_now} classes, {new:.1f} % of the new"
    )
table = CountTable(schedule.sizes, counts)
print(f"average {average_accuracy(table):.2f} %, forgetting {forgetting(table):.2f} %")
