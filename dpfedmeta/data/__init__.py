"""Task file -> class pool -> episode -> population of clients."""

from dpfedmeta.data.dataset import Dataset, open_dataset
from dpfedmeta.data.episode import Episode, draw_episode
from dpfedmeta.data.pool import ClassPool
from dpfedmeta.data.population import Population, VirtualPopulation
from dpfedmeta.data.shape import EpisodeShape
from dpfedmeta.data.shards import ShardPopulation
from dpfedmeta.data.task import Task, load_task

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
