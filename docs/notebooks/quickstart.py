# %% [markdown]
# # Quickstart
#
# Train a private initialisation on `strokes` (no files needed), see what was promised and what was spent, and adapt it to new pictures. About half a minute of one core.

# %%
import matplotlib.pyplot as plt
import numpy as np

import dpfedmeta as dp
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.episode import draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape

settings = dp.Settings.preset(
    "dp-agr",
    "strokes",
    {"run.workers": 1, "evaluation.every": 5, "evaluation.episodes": 100, "evaluation.validation_episodes": 50},
    epsilon=1.5,
    rounds=15,
    cohort=60,
)

# %% [markdown]
# ## The promise comes first
#
# Nothing has been trained yet. The noise was solved so that (client, public) keeps epsilon = 1.5; `inf` says that nothing is promised there.

# %%
planned = dp.plan(settings)
print(planned.guarantees)

# %% [markdown]
# ## Train
#
# In each round some 60 of 400,000 simulated clients take part.

# %%
run = dp.train(settings, quiet=True)
print(f"{run.status}: accuracy {run.accuracy}, spent {rounded_up(run.guarantees.of('client', 'public').epsilon)}")

# %% [markdown]
# ## Along training
#
# The bound to which messages are clipped follows what was released; epsilon grows as rounds go by. Everything drawn here is public.

# %%
rounds = list(run.rounds)
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
left.plot([row["round"] for row in rounds], [row["clip"] for row in rounds], "o-", color="#0072b2")
left.set(xlabel="round", ylabel="clip bound", yscale="log")
right.plot([row["round"] for row in rounds], [row["epsilon_client_public"] for row in rounds], "s--", color="#d55e00")
_ = right.set(xlabel="round", ylabel="epsilon of (client, public)")
# %% [markdown]
# ## Adapt to new pictures
#
# Somebody with five pictures of each of five characters that no client ever held. Nothing of this leaves the machine.

# %%
mine = draw_episode(open_dataset("strokes").test, np.random.default_rng(3), EpisodeShape(ways=5, shots=5, queries=3))
model = run.adapt(mine.support_images, mine.support_labels)
predicted = model.predict(mine.query_images)
print("right:", int((predicted == mine.query_labels).sum()), "of", len(predicted))

# %%
figure, places = plt.subplots(1, 5, figsize=(8, 1.9), layout="constrained")
for each, place in enumerate(places):
    place.imshow(np.asarray(mine.query_images[3 * each])[0], cmap="gray_r")
    place.set_title(f"is {int(mine.query_labels[3 * each])}, taken for {int(predicted[3 * each])}", fontsize=9)
    place.axis("off")
