"""Task file -> class pool -> episode -> population of clients."""

from dpfedmeta.data.episode import Episode, EpisodeShape, draw_episode
from dpfedmeta.data.pool import ClassPool
from dpfedmeta.data.population import Population, VirtualPopulation
from dpfedmeta.data.shards import ShardPopulation
from dpfedmeta.data.task import Dataset, Task, load_task, open_dataset

__all__ = [
    "ClassPool",
    "Dataset",
    "Episode",
    "EpisodeShape",
    "Population",
    "ShardPopulation",
    "Task",
    "VirtualPopulation",
    "draw_episode",
    "load_task",
    "open_dataset",
]
